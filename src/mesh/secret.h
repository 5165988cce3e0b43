// The secret by which ranks on several hosts know each other: the bytes of a file that each of them is given. No torch.
#pragma once

#include <string>

namespace tandem::mesh {

// The bytes of this file. UserError, which names TANDEM_SECRET_FILE: there is none, others than its owner may read it,
// or it has fewer than 16 bytes.
std::string read_secret(const std::string& path);

// 32 hexadecimal digits of the kernel's random numbers. EnvironmentError.
std::string random_digits();

}  // namespace tandem::mesh
