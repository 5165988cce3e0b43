# OpenSSL of the system, 3.0 or newer: hashes in tandem_base (libcrypto), TLS between machines in tandem_mesh_core (libssl).
find_package(OpenSSL 3.0 COMPONENTS Crypto SSL)
if(NOT OPENSSL_FOUND)
  message(FATAL_ERROR "no OpenSSL 3.0 or newer with its headers (libssl-dev): run `make setup` in ${CMAKE_SOURCE_DIR}")
endif()
