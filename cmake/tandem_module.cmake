# tandem_module(name [CORE] SOURCES a.cc ... DEPENDS tandem_base ...)
#   A library tandem_<name>. CORE: no torch; built in every preset. Others link torch and are skipped
#   where TANDEM_TORCH is OFF.
function(tandem_module name)
  cmake_parse_arguments(arg "CORE" "" "SOURCES;DEPENDS" ${ARGN})
  if(NOT arg_CORE AND NOT TANDEM_TORCH)
    return()
  endif()
  add_library(tandem_${name} STATIC ${arg_SOURCES})
  if(TANDEM_SANITIZE STREQUAL "thread")  # what its few tests link
    set_target_properties(tandem_${name} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  target_include_directories(tandem_${name} PUBLIC "${CMAKE_SOURCE_DIR}/src" "${CMAKE_SOURCE_DIR}/include")
  target_link_libraries(tandem_${name} PUBLIC ${arg_DEPENDS} tandem_fmt nlohmann_json::nlohmann_json)
  if(arg_CORE)
    tandem_precompiled(tandem_${name} core)
  else()
    target_link_libraries(tandem_${name} PUBLIC tandem_torch)
    tandem_precompiled(tandem_${name} torch)
  endif()
endfunction()

# Threads that spin while they wait take the cores from the test beside: twice the processor time for the same work.
# Each allocation keeps two callers for a report: without them LeakSanitizer finds nothing, and with ASan's thirty a test
# takes up to half as long again. docs/TESTING.md says how to see more.
set(tandem_test_environment
  "OMP_WAIT_POLICY=passive;ASAN_OPTIONS=detect_leaks=1:detect_odr_violation=0:malloc_context_size=2;LSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tools/lsan.supp:print_suppressions=0;UBSAN_OPTIONS=print_stacktrace=1")
# That of tests in other languages, which start the program: there nobody looks for leaks (tests/cli/tiny_run.h).
set(tandem_program_environment "OMP_WAIT_POLICY=passive;ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0:malloc_context_size=0;UBSAN_OPTIONS=print_stacktrace=1")

# Seconds after which a test is taken to hang: several times what the slowest takes on a slow machine.
set(tandem_test_timeout 1800)

# tandem_test(name [CORE] [THREADS] SOURCES a_test.cc ... DEPENDS tandem_x ... [LABELS slow ...] [COST seconds])
#   One GoogleTest program = one ctest entry named <name>. Tests run in the source folder, so golden
#   files are at tests/golden. Pass your own arguments after ARGS. COST: a test of more than about half a minute says so,
#   since ctest starts the longest first. THREADS: several threads of ours run in it, so ThreadSanitizer watches it too.
function(tandem_test name)
  cmake_parse_arguments(arg "CORE;THREADS" "COST" "SOURCES;DEPENDS;LABELS;ARGS" ${ARGN})
  if(NOT arg_CORE AND NOT TANDEM_TORCH)
    return()
  endif()
  if(TANDEM_SANITIZE STREQUAL "thread" AND NOT arg_THREADS)
    return()
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${arg_DEPENDS} GTest::gtest_main)
  if(TANDEM_SANITIZE MATCHES "undefined")
    # What is tested has UBSan's checks. In the expectations themselves they are a third of the time to compile them.
    target_compile_options(${name} PRIVATE -fno-sanitize=undefined,float-cast-overflow)
  endif()
  if(arg_CORE)
    tandem_precompiled(${name} core_tests)
  else()
    tandem_precompiled(${name} torch_tests)
  endif()
  add_test(NAME ${name} COMMAND ${name} ${arg_ARGS} WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
  if(arg_COST)
    set_tests_properties(${name} PROPERTIES COST ${arg_COST})
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${tandem_test_timeout} LABELS "cpu;${arg_LABELS}"
    ENVIRONMENT "${tandem_test_environment}")
endfunction()

# tandem_starts(test program target ...): tells a test at which path the program is, which it starts because signals and
#   exit codes are asked of the real one. The targets are built before.
function(tandem_starts test program)
  if(TARGET ${test})
    target_compile_definitions(${test} PRIVATE TANDEM_PROGRAM="${program}")
    add_dependencies(${test} ${ARGN})
  endif()
endfunction()

# tandem_program_test(name ...): a tandem_test that starts the program where it is built.
function(tandem_program_test name)
  tandem_test(${name} ${ARGN})
  tandem_starts(${name} "$<TARGET_FILE:tandem>" tandem)
endfunction()

# The backends that are modules (device/backends.cc), what ctest labels the tests on each, and how GoogleTest finds them:
# the names of such tests, or of their parameters, begin or end with the backend's.
set(tandem_modules cuda npu)
set(tandem_label_cuda gpu)
set(tandem_label_npu npu)
function(tandem_module_filter module result)
  set(${result} "*/${module}*:*_${module}*" PARENT_SCOPE)
endfunction()

# tandem_module_tests(device TEST device_test): the tests of an existing program that name a module's backend, as ctest
#   entries of their own: device_gpu_test with the label gpu, device_npu_test with the label npu. Where there is no
#   device they are skipped, and say why. The program's own entry leaves them out.
function(tandem_module_tests name)
  cmake_parse_arguments(arg "" "TEST" "ARGS" ${ARGN})
  if(NOT TANDEM_TORCH)
    return()
  endif()
  set(all "")
  foreach(module ${tandem_modules})
    set(label ${tandem_label_${module}})
    tandem_module_filter(${module} filter)
    list(APPEND all "${filter}")
    add_test(NAME ${name}_${label}_test COMMAND ${arg_TEST} ${arg_ARGS} --gtest_filter=${filter}
      WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
    # The remedy in what tests say where the module or the device is missing.
    set_tests_properties(${name}_${label}_test PROPERTIES TIMEOUT ${tandem_test_timeout} LABELS ${label} RESOURCE_LOCK ${label}
      SKIP_REGULAR_EXPRESSION "give --device cpu")
    if(TARGET tandem_${module})
      add_dependencies(${arg_TEST} tandem_${module})
    endif()
  endforeach()
  list(JOIN all ":" all)
  set_property(TEST ${arg_TEST} APPEND PROPERTY ENVIRONMENT "GTEST_FILTER=-${all}")
endfunction()
