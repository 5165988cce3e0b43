// Stands for Gloo's header of this name, which LibTorch's wheel does not bring: nothing of it is needed.
#pragma once
