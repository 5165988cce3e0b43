# CUDA kernels: .cu files without torch headers, compiled by the nvcc of the pinned wheels, so that no toolkit is needed.
# Not through CMake's CUDA language, which wants a toolkit's layout and links a program at configure time.
# Code for 8.0 also runs on 8.6 and 8.7, and code for 10.0 on 10.3.
set(TANDEM_CUDA_ARCHS "80;89;90a;100;120" CACHE STRING "Compute capabilities of the GPUs that kernels are compiled for")
set(TANDEM_CUDA_PTX 100 CACHE STRING
  "Compute capability of the PTX, which a driver compiles for a newer GPU that none of TANDEM_CUDA_ARCHS has code for")

# tandem_cuda_kernels(target [WGMMA] [FLAGS ...] SOURCES a.cu ...)  adds their objects to the target. With WGMMA they are
# compiled for 9.0a, which alone has those instructions, and the program runs their kernels on no other GPU.
function(tandem_cuda_kernels target)
  cmake_parse_arguments(arg "WGMMA" "" "FLAGS;SOURCES" ${ARGN})
  set(nvcc "${site_packages}/nvidia/cu13/bin/nvcc")
  if(NOT EXISTS "${nvcc}")
    message(FATAL_ERROR "no nvcc under .venv: run `make cuda` in ${CMAKE_SOURCE_DIR}")
  endif()
  set(flags -std=c++20 -O3 --expt-relaxed-constexpr -Xcompiler=-fPIC,-fvisibility=hidden "-ccbin=${CMAKE_CXX_COMPILER}"
    # A compiler that fuses a*b+c where it likes would make one formula differ between two kernels.
    -fmad=false)
  if(arg_WGMMA)
    list(APPEND flags --compress-mode=size)
    set(archs 90a)
  else()
    list(APPEND flags --compress-mode=size "-gencode=arch=compute_${TANDEM_CUDA_PTX},code=compute_${TANDEM_CUDA_PTX}")
    set(archs ${TANDEM_CUDA_ARCHS})
  endif()
  foreach(arch ${archs})
    list(APPEND flags "-gencode=arch=compute_${arch},code=sm_${arch}")
  endforeach()
  foreach(source ${arg_SOURCES})
    set(object "${CMAKE_CURRENT_BINARY_DIR}/${source}.o")
    get_filename_component(folder "${object}" DIRECTORY)
    file(MAKE_DIRECTORY "${folder}")
    add_custom_command(OUTPUT "${object}"
      COMMAND ${TANDEM_CCACHE} "${nvcc}" ${flags} ${arg_FLAGS} "-I${CMAKE_SOURCE_DIR}/src" "-I${CMAKE_SOURCE_DIR}/include"
        -MD -MF "${object}.d" -c "${CMAKE_CURRENT_SOURCE_DIR}/${source}" -o "${object}"
      DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${source}" DEPFILE "${object}.d"
      COMMENT "Compiling CUDA kernels ${source}" VERBATIM)
    set_source_files_properties("${object}" PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
    target_sources(${target} PRIVATE "${object}")
  endforeach()
endfunction()
