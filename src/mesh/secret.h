// The secret by which ranks on several hosts know each other: the bytes of a file that each of them is given. No torch.
#pragma once

#include <string>

namespace tandem::mesh {

// Returns the bytes of this file. Throws UserError, which names TANDEM_SECRET_FILE, if there is none, others than its
// owner may read it, it has fewer than 32 bytes, or they are so few different ones that it can be guessed.
std::string read_secret(const std::string& path);

// Overwrites the bytes of a secret that is no longer used, and leaves it empty.
void forget(std::string& secret);

// Returns 32 hexadecimal digits of the kernel's random numbers. Throws EnvironmentError.
std::string random_digits();

}  // namespace tandem::mesh
