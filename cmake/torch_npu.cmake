# TANDEM_NPU: the NPU module beside the program. Both are built with the LibTorch of the user's own Python, in which
# torch_npu runs: a process has one LibTorch. Nothing of torch_npu is linked; its headers of CANN are compared with ours.
option(TANDEM_NPU "Build the module of Ascend NPUs, for the torch_npu of TANDEM_NPU_PYTHON" OFF)
set(TANDEM_NPU_PYTHON "" CACHE FILEPATH "The Python that has torch and torch_npu")
if(NOT TANDEM_NPU)
  return()
endif()

set(versions_of_torch_npu 2.11.0 2.11.0.post3)
set(question [[
import importlib.metadata as metadata, importlib.util as util, os, sys, sysconfig
def folder(package):
    spec = util.find_spec(package)
    return os.path.dirname(spec.origin) if spec and spec.origin else ""
def version(package):
    return metadata.version(package) if folder(package) else ""
ask = sysconfig.get_config_var
library = os.path.join(ask("LIBDIR") or "", ask("INSTSONAME") or "")
if not os.path.isfile(library):
    library = os.path.join(ask("LIBDIR") or "", ask("MULTIARCH") or "", ask("INSTSONAME") or "")
print(";".join([sys.executable, folder("torch"), version("torch"), folder("torch_npu"), version("torch_npu"), library,
                sysconfig.get_path("include")]))
]])
execute_process(COMMAND "${TANDEM_NPU_PYTHON}" -c "${question}" OUTPUT_VARIABLE answer ERROR_VARIABLE why
  RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE)
if(failed)
  message(FATAL_ERROR "${TANDEM_NPU_PYTHON} does not run: ${why}\nGive `make npu PYTHON=...` a Python with torch_npu.")
endif()
list(GET answer 0 TANDEM_NPU_PYTHON)
list(GET answer 1 TANDEM_TORCH_ROOT)
list(GET answer 2 torch_version)
list(GET answer 3 TANDEM_TORCH_NPU_ROOT)
list(GET answer 4 TANDEM_TORCH_NPU_VERSION)
list(GET answer 5 libpython)
list(GET answer 6 python_include)
# Where it is the LibTorch of .venv, it has the same path as in other builds, so that ccache shares their objects.
file(GLOB own_torch "${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
if(own_torch)
  file(REAL_PATH "${own_torch}" own_place)
  file(REAL_PATH "${TANDEM_TORCH_ROOT}" place)
  if(own_place STREQUAL place)
    set(TANDEM_TORCH_ROOT "${own_torch}")
  endif()
endif()
list(JOIN versions_of_torch_npu " or " choices)
if(NOT torch_version MATCHES "^2\\.11\\.0(\\+|$)" OR NOT TANDEM_TORCH_NPU_VERSION IN_LIST versions_of_torch_npu)
  message(FATAL_ERROR "${TANDEM_NPU_PYTHON} has torch '${torch_version}' and torch_npu '${TANDEM_TORCH_NPU_VERSION}': "
    "the module is built for torch 2.11.0 and torch_npu ${choices}. Install these, or give another PYTHON.")
endif()
if(NOT libpython MATCHES "\\.so" OR NOT EXISTS "${libpython}" OR NOT EXISTS "${python_include}/Python.h")
  message(FATAL_ERROR "${TANDEM_NPU_PYTHON}: no libpython as a shared library ('${libpython}'), or no Python.h in "
    "${python_include}. Install python3-dev, or a Python that was built with --enable-shared.")
endif()

add_library(tandem_python INTERFACE)
target_include_directories(tandem_python SYSTEM INTERFACE "${python_include}")
target_link_libraries(tandem_python INTERFACE "${libpython}")
target_compile_definitions(tandem_python INTERFACE TANDEM_NPU_PYTHON="${TANDEM_NPU_PYTHON}"
  TANDEM_NPU_LIBPYTHON="${libpython}" TANDEM_NPU_TORCH_NPU="${TANDEM_TORCH_NPU_VERSION}")
add_library(tandem_acl_headers INTERFACE)
target_include_directories(tandem_acl_headers SYSTEM INTERFACE
  "${TANDEM_TORCH_NPU_ROOT}/include/third_party/acl/inc" "${TANDEM_TORCH_NPU_ROOT}/include")
