"""Draws one sparse MLP block and computes its output and all its gradients in float64."""

import float64
import model
import torch

HIDDEN, WIDTH, TOKENS = 32, 24, 20
CASES = (("x8.k2.normed", 8, 2, True), ("x16.k4.unnormed", 16, 4, False))
IDLE = 3  # the expert without a token: its gradients are exactly 0
CLEAR_MARGIN = 1e-3  # of the logit at the cut, so that float32 chooses the same experts


def make(seed):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape, scale=1.0):
        # bfloat16 holds the inputs exactly, so that both dtypes can be put through the case.
        return torch.empty(shape).normal_(0.0, scale, generator=generator).to(torch.bfloat16)

    tensors = {}
    for name, experts, chosen, normalises in CASES:
        inputs = {
            "x": draw(TOKENS, HIDDEN),
            "router": model.draw_router((experts, HIDDEN), IDLE, chosen, generator).to(torch.bfloat16),
            "experts_gate_up": draw(experts * 2 * WIDTH, HIDDEN, scale=0.2),
            "experts_down": draw(experts * HIDDEN, WIDTH, scale=0.2),
        }
        leaves = {key: tensor.double().requires_grad_(True) for key, tensor in inputs.items()}
        gate_up = leaves["experts_gate_up"].view(experts, 2, WIDTH, HIDDEN)
        down = leaves["experts_down"].view(experts, HIDDEN, WIDTH)
        out, routing = float64.sparse_mlp(leaves["x"], leaves["router"], lambda j: (*gate_up[j], down[j]), chosen, normalises)
        assert routing.margin().min() > CLEAR_MARGIN, f"{name}: a choice hangs on a rounding; take another seed"
        assert not (routing.ids == IDLE).any()
        dout = draw(TOKENS, HIDDEN)
        out.backward(dout.double())
        ids, order = routing.ids.sort(dim=-1)
        results = {"out": out, "logits": routing.logits, "weights": routing.weights.gather(-1, order)}
        results |= {f"d{key}": leaf.grad for key, leaf in leaves.items()}
        tensors |= {f"{name}.{key}": tensor for key, tensor in (inputs | {"dout": dout, "ids": ids.to(torch.int32)}).items()}
        tensors |= {f"{name}.{key}": tensor.detach().float() for key, tensor in results.items()}
    return tensors
