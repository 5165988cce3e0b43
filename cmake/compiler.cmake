# Language level, warnings, sanitizers, ccache, linker.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
add_compile_options(-fPIC)  # libraries and programs alike, so that they share precompiled headers
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# Dev: enough optimisation that sanitized tests stay quick, line tables for reports. -O1 takes a third longer to compile.
set(CMAKE_CXX_FLAGS_DEV "-Og -g1 -fno-omit-frame-pointer")
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
add_compile_options(-Wall -Wextra -Wno-unused-parameter -Werror=return-type
  # A compiler that fuses a*b+c where it likes would make two builds of one formula differ.
  -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # The compiler collects its garbage seldom: a sixth less time, for a tenth more memory.
  add_compile_options("SHELL:--param ggc-min-expand=200" "SHELL:--param ggc-min-heapsize=500000")
endif()
if(TANDEM_SANITIZE)
  add_compile_options(-fsanitize=${TANDEM_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TANDEM_SANITIZE})
  # At one address, a program needs no relocation of the two million places in what UBSan knows of the sources: it links
  # in half the time, and starts a tenth sooner.
  if(TANDEM_SANITIZE MATCHES "address")
    add_link_options($<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-no-pie>)
  endif()
  if(TANDEM_SANITIZE MATCHES "undefined")
    # libtorch is built without RTTI data for our types: vptr checks across it are false alarms.
    add_compile_options(-fno-sanitize=vptr)
  endif()
endif()
find_program(TANDEM_CCACHE ccache)
if(TANDEM_CCACHE)
  # Without these, ccache keeps nothing that was compiled with a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros ${TANDEM_CCACHE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-fpch-preprocess)
  endif()
endif()
find_program(TANDEM_LLD ld.lld)
if(TANDEM_LLD AND NOT CMAKE_CROSSCOMPILING)  # a cross compiler looks for linkers of its own target's name
  add_link_options(-fuse-ld=lld)
endif()
