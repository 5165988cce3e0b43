# Precompiled headers: what nearly every file includes (the standard library, fmt, JSON, torch's Tensor) is parsed once
# a build folder, not once a file. They are no way to leave an include out: -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON builds
# without them. A file with flags of its own (an instruction set) is compiled without them.
set(tandem_core_headers
  <algorithm> <array> <charconv> <chrono> <cmath> <cstdint> <cstdio> <cstdlib> <cstring> <deque> <filesystem> <fstream>
  <functional> <limits> <map> <memory> <mutex> <numeric> <optional> <random> <set> <span> <sstream> <stdexcept> <string>
  <string_view> <thread> <utility> <vector> <fmt/format.h> <nlohmann/json.hpp>)
set(tandem_torch_headers ${tandem_core_headers} <ATen/core/Tensor.h> <ATen/ops/empty.h>)

# The four sets, each made by a target without code: core or torch, for the program or for its tests.
function(tandem_precompiled_set name)
  cmake_parse_arguments(arg "" "" "HEADERS;DEPENDS" ${ARGN})
  set(source "${CMAKE_BINARY_DIR}/precompiled/${name}.cc")
  if(NOT EXISTS "${source}")
    file(WRITE "${source}" "")
  endif()
  add_library(tandem_headers_${name} OBJECT "${source}")
  target_link_libraries(tandem_headers_${name} PRIVATE ${arg_DEPENDS})
  target_precompile_headers(tandem_headers_${name} PRIVATE ${arg_HEADERS})
endfunction()
tandem_precompiled_set(core HEADERS ${tandem_core_headers} DEPENDS tandem_fmt nlohmann_json::nlohmann_json)
tandem_precompiled_set(core_tests HEADERS ${tandem_core_headers} <gtest/gtest.h>
  DEPENDS tandem_fmt nlohmann_json::nlohmann_json GTest::gtest)
if(TANDEM_TORCH)
  tandem_precompiled_set(torch HEADERS ${tandem_torch_headers}
    DEPENDS tandem_fmt nlohmann_json::nlohmann_json tandem_torch)
  tandem_precompiled_set(torch_tests HEADERS ${tandem_torch_headers} <gtest/gtest.h>
    DEPENDS tandem_fmt nlohmann_json::nlohmann_json tandem_torch GTest::gtest)
endif()

# tandem_precompiled(target core|core_tests|torch|torch_tests)
function(tandem_precompiled target set)
  target_precompile_headers(${target} REUSE_FROM tandem_headers_${set})
endfunction()
