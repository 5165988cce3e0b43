"""The token ids that a reference is computed on: five sequences, and a right-padded batch with labels."""

import torch

LENGTHS = [1, 7, 23, 64, 97]
BATCH_LENGTHS = [19, 7, 31, 12]
NUM_TOKENS = 749  # of the tokenizer; the model's vocabulary is larger


def draw_ids(length, pad, generator):
    """No id is that of padding: transformers gives its row of the embedding no gradient where config.json names it."""
    ids = torch.randint(0, NUM_TOKENS - 1, (length,), generator=generator)
    return ids + (ids >= pad)


def draw(pad, seed):
    """The tensors of reference.safetensors that are given, not computed."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {f"seq{i}.input_ids": draw_ids(length, pad, generator) for i, length in enumerate(LENGTHS)}
    shape = (len(BATCH_LENGTHS), max(BATCH_LENGTHS))
    ids, mask, labels = torch.full(shape, pad), torch.zeros(shape, dtype=torch.int64), torch.full(shape, -100)
    for row, length in enumerate(BATCH_LENGTHS):
        ids[row, :length] = draw_ids(length, pad, generator)
        mask[row, :length] = 1
        labels[row, :length] = ids[row, :length]
    labels[0, : BATCH_LENGTHS[0] // 3] = -100
    return tensors | {"batch.input_ids": ids, "batch.attention_mask": mask, "batch.labels": labels}
