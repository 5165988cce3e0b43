"""Writes quantised.safetensors: matrices, and what bitsandbytes makes of them on the CPU.

Run with bitsandbytes 0.50.2 and torch 2.11.0:  python tests/golden/quantised/make.py

The kernels are the package's own in PyTorch. Its compiled library rounds absolute maxima by a table of 2^16 entries,
which for about one in 700 of them is not the nearest value of the map.

For each matrix NAME the file has NAME.weight; what Params4bit keeps of it with quant_type "nf4" and double
quantisation, under the names that a checkpoint gives them (NAME.nf4, NAME.nf4.absmax, NAME.nf4.nested_absmax,
NAME.nf4.nested_quant_map, NAME.nf4.quant_map, NAME.nf4.offset) and NAME.nf4.bfloat16, the matrix that it computes with;
and what Int8Params keeps of it: NAME.int8, NAME.int8.SCB and NAME.int8.bfloat16.
"""

import ctypes
import pathlib

import torch


def no_library(name):
    raise OSError(f"{name} is not to be loaded")


load, ctypes.cdll.LoadLibrary = ctypes.cdll.LoadLibrary, no_library
import bitsandbytes.functional as bnb  # noqa: E402

ctypes.cdll.LoadLibrary = load
from safetensors.torch import save_file


def quantised(name, weight):
    tensors = {f"{name}.weight": weight}
    codes, state = bnb.quantize_4bit(weight, quant_type="nf4", blocksize=64, compress_statistics=True)
    nf4 = f"{name}.nf4"
    tensors |= {
        nf4: codes,
        f"{nf4}.absmax": state.absmax,
        f"{nf4}.nested_absmax": state.state2.absmax,
        f"{nf4}.nested_quant_map": state.state2.code.clone(),
        f"{nf4}.quant_map": state.code.clone(),
        f"{nf4}.offset": state.offset.reshape(1),
    }
    absmax = bnb.dequantize_blockwise(state.absmax, state.state2) + state.offset
    values = torch.ops.bitsandbytes.dequantize_4bit.default(codes, absmax, 64, "nf4", weight.shape, torch.float32)
    tensors[f"{nf4}.bfloat16"] = values.to(torch.bfloat16)
    rows, scales, _ = bnb.int8_vectorwise_quant(weight.to(torch.float16))
    tensors |= {f"{name}.int8": rows, f"{name}.int8.SCB": scales}
    tensors[f"{name}.int8.bfloat16"] = bnb.int8_vectorwise_dequant(rows, scales).to(torch.bfloat16)
    return tensors


def main():
    generator = torch.Generator().manual_seed(7)

    def normal(rows, columns, dtype):
        return (torch.randn(rows, columns, generator=generator) * 0.02).to(dtype)

    wide = normal(131, 128, torch.bfloat16)  # 262 blocks: two blocks of absolute maxima
    wide[3, 64:] = 0.0  # a block of zeros
    wide[17, 5] = 4.0  # an outlier, far above all others
    wide[18] *= 1e-3
    ragged = normal(13, 36, torch.float32)  # blocks across rows, and a last one of 20 weights
    tensors = quantised("wide", wide) | quantised("ragged", ragged) | quantised("odd", normal(3, 11, torch.float32))
    save_file(tensors, str(pathlib.Path(__file__).with_name("quantised.safetensors")))


if __name__ == "__main__":
    main()
