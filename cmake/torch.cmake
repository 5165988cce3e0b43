# LibTorch from the pinned wheel in .venv: libtorch_cpu, libc10 and the OpenMP runtime that they use
# (ours must be the same one, or two thread pools would fight for the cores). fmt is torch's own
# copy, through a folder that shows fmt and nothing else of torch.
if(NOT TANDEM_TORCH_ROOT)  # else that of the user's Python (torch_npu.cmake), or of another kind of machine
  file(GLOB TANDEM_TORCH_ROOT "${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
endif()
if(NOT TANDEM_TORCH_ROOT)
  message(FATAL_ERROR "no torch wheel under .venv: run `make setup` in ${CMAKE_SOURCE_DIR}")
endif()

# Beside the wheel, not in the build folder: the same path in every build lets ccache share objects between them.
set(TANDEM_FMT_INCLUDE "${CMAKE_SOURCE_DIR}/.venv/fmt_include")
if(NOT TANDEM_TORCH_ROOT MATCHES "^${CMAKE_SOURCE_DIR}/.venv/")
  set(TANDEM_FMT_INCLUDE "${CMAKE_BINARY_DIR}/fmt_include")
endif()
if(NOT EXISTS "${TANDEM_FMT_INCLUDE}/fmt")
  file(MAKE_DIRECTORY "${TANDEM_FMT_INCLUDE}")
  file(CREATE_LINK "${TANDEM_TORCH_ROOT}/include/fmt" "${TANDEM_FMT_INCLUDE}/fmt" SYMBOLIC)
endif()
add_library(tandem_fmt STATIC "${CMAKE_SOURCE_DIR}/cmake/fmt.cc")
target_include_directories(tandem_fmt SYSTEM PUBLIC "${TANDEM_FMT_INCLUDE}")

if(TANDEM_TORCH)
  add_library(tandem_torch INTERFACE)
  target_include_directories(tandem_torch SYSTEM INTERFACE
    "${TANDEM_TORCH_ROOT}/include" "${TANDEM_TORCH_ROOT}/include/torch/csrc/api/include")
  target_compile_options(tandem_torch INTERFACE -fopenmp)
  get_filename_component(site_packages "${TANDEM_TORCH_ROOT}" DIRECTORY)
  target_link_libraries(tandem_torch INTERFACE
    "${TANDEM_TORCH_ROOT}/lib/libtorch_cpu.so" "${TANDEM_TORCH_ROOT}/lib/libc10.so"
    "${TANDEM_TORCH_ROOT}/lib/libgomp.so.1" pthread)
  set(CMAKE_BUILD_RPATH "${TANDEM_TORCH_ROOT}/lib" "${site_packages}/nvidia/cu13/lib")
  target_link_options(tandem_torch INTERFACE
    "-Wl,-rpath-link,${TANDEM_TORCH_ROOT}/lib:${site_packages}/nvidia/cu13/lib"
    "-Wl,--no-as-needed" "-Wl,--allow-shlib-undefined")
endif()

# tandem_relocatable(target): its libraries are looked for where the clone is now, then in a .venv beside the file, then
#   where they were when it was built: a clone can be moved, and the program copied with or without .venv.
function(tandem_relocatable target)
  get_target_property(built_in ${target} BINARY_DIR)
  set(places "")
  foreach(folder ${CMAKE_BUILD_RPATH})
    file(RELATIVE_PATH from_target "${built_in}" "${folder}")
    file(RELATIVE_PATH from_clone "${CMAKE_SOURCE_DIR}" "${folder}")
    list(APPEND places "$ORIGIN/${from_target}" "$ORIGIN/${from_clone}" "${folder}")
  endforeach()
  set_target_properties(${target} PROPERTIES BUILD_RPATH "${places}")
endfunction()
