# A toolchain for aarch64 (64-bit Arm) on a machine of another kind: Debian's cross compiler, the libraries that
# `tools/setup.sh aarch64` unpacks, and QEMU, which runs what was built.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L /usr/aarch64-linux-gnu)

# Headers, libraries and CMake packages come from the unpacked folder and from the cross compiler, programs from this machine.
get_filename_component(clone "${CMAKE_CURRENT_LIST_DIR}" DIRECTORY)
set(CMAKE_FIND_ROOT_PATH "${clone}/build/aarch64_root")
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CXX_FLAGS_INIT "-isystem ${CMAKE_FIND_ROOT_PATH}/usr/include/aarch64-linux-gnu")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
