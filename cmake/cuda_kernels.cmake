# CUDA kernels: .cu files without torch headers, compiled by the nvcc of the pinned wheels, so that no toolkit is needed.
# Not through CMake's CUDA language, which wants a toolkit's layout and links a program at configure time.
set(TANDEM_CUDA_ARCHS "80;90a" CACHE STRING
  "GPUs that kernels are compiled for, as compute capabilities; the first also as PTX, which newer drivers compile themselves")

# tandem_cuda_kernels(target [FLAGS ...] SOURCES a.cu ...)  adds their objects to the target.
function(tandem_cuda_kernels target)
  cmake_parse_arguments(arg "" "" "FLAGS;SOURCES" ${ARGN})
  set(nvcc "${site_packages}/nvidia/cu13/bin/nvcc")
  if(NOT EXISTS "${nvcc}")
    message(FATAL_ERROR "no nvcc under .venv: run `make cuda` in ${CMAKE_SOURCE_DIR}")
  endif()
  set(flags -std=c++20 -O3 --expt-relaxed-constexpr -Xcompiler=-fPIC,-fvisibility=hidden "-ccbin=${CMAKE_CXX_COMPILER}"
    # A compiler that fuses a*b+c where it likes would make one formula differ between two kernels.
    -fmad=false)
  list(GET TANDEM_CUDA_ARCHS 0 first)
  list(APPEND flags "-gencode=arch=compute_${first},code=compute_${first}")
  foreach(arch ${TANDEM_CUDA_ARCHS})
    list(APPEND flags "-gencode=arch=compute_${arch},code=sm_${arch}")
  endforeach()
  foreach(source ${arg_SOURCES})
    set(object "${CMAKE_CURRENT_BINARY_DIR}/${source}.o")
    add_custom_command(OUTPUT "${object}"
      COMMAND ${TANDEM_CCACHE} "${nvcc}" ${flags} ${arg_FLAGS} "-I${CMAKE_SOURCE_DIR}/src"
        -MD -MF "${object}.d" -c "${CMAKE_CURRENT_SOURCE_DIR}/${source}" -o "${object}"
      DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${source}" DEPFILE "${object}.d"
      COMMENT "Compiling CUDA kernels ${source}" VERBATIM)
    set_source_files_properties("${object}" PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
    target_sources(${target} PRIVATE "${object}")
  endforeach()
endfunction()
