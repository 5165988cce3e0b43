"""llama.cpp generating: PROMPTS prompts of LENGTH tokens, SAMPLES completions of each with NEW tokens, sampled at temperature 1
from the whole distribution. Each prompt is read once and its cells are shared by its completions.

    llama_cpp_generate.py FOLDER DTYPE ROUNDS PROMPTSxSAMPLESxLENGTHxNEW...

Prints one JSON line: for each of the workloads the seconds of each round, for the prompts and for all of it."""

import ctypes
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import llama_cpp as lc
import numpy as np

THREADS, BATCH = 2, 512


class Generator:
    def __init__(self, model, vocab, sequences, cells, float32_attention=False):
        params = lc.llama_context_default_params()
        if float32_attention:  # by default keys, values and the products of flash attention are float16
            params.type_k = params.type_v = lc.GGML_TYPE_F32
            params.flash_attn_type = lc.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.n_ctx, params.n_seq_max, params.kv_unified = cells, sequences, True
        params.n_batch = params.n_ubatch = BATCH
        params.n_threads = params.n_threads_batch = THREADS
        self.context = lc.llama_init_from_model(model, params)
        self.memory = lc.llama_get_memory(self.context)
        self.batch = lc.llama_batch_init(BATCH, 0, 1)
        self.vocab = vocab
        self.rng = np.random.default_rng(0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        lc.llama_batch_free(self.batch)
        lc.llama_free(self.context)

    def decode(self, rows, samples=1):
        """rows of (token, position, sequence, wants logits) -> `samples` next tokens of each that wants them"""
        results = []
        for begin in range(0, len(rows), BATCH):
            part = rows[begin : begin + BATCH]
            self.batch.n_tokens = len(part)
            for i, (token, position, sequence, wanted) in enumerate(part):
                self.batch.token[i], self.batch.pos[i], self.batch.logits[i] = token, position, wanted
                self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, sequence
            assert lc.llama_decode(self.context, self.batch) == 0
            count = sum(1 for row in part if row[3])
            if count:
                at = ctypes.cast(lc.llama_get_logits(self.context), ctypes.POINTER(ctypes.c_float))
                results.append(self.sample(np.ctypeslib.as_array(at, shape=(count, self.vocab)), samples))
        return np.concatenate(results)

    def sample(self, logits, samples):
        sums = np.cumsum(np.exp(logits - logits.max(axis=1, keepdims=True)), axis=1)
        at = self.rng.random((len(logits), samples), dtype=np.float32) * sums[:, -1:]
        return np.stack([np.searchsorted(row, x) for row, x in zip(sums, at)]).clip(max=self.vocab - 1).reshape(-1)

    def run(self, prompts, samples, new):
        lc.llama_memory_clear(self.memory, True)
        begin = time.perf_counter()
        length = len(prompts[0])
        rows = [(int(t), i, p * samples, i == length - 1) for p, prompt in enumerate(prompts) for i, t in enumerate(prompt)]
        tokens = self.decode(rows, samples)
        for p in range(len(prompts)):
            for s in range(1, samples):
                lc.llama_memory_seq_cp(self.memory, p * samples, p * samples + s, -1, -1)
        prefill = time.perf_counter() - begin
        for step in range(new - 1):
            tokens = self.decode([(int(t), length + step, s, True) for s, t in enumerate(tokens)])
        return prefill, time.perf_counter() - begin


def write_gguf(folder, dtype, path):
    """In a process of its own: torch, which it needs, stays out of this one."""
    subprocess.run([sys.executable, str(pathlib.Path(__file__).parent / "write_gguf.py"), str(folder), dtype, str(path)], check=True)


def load(path):
    """Quiet; the callback is returned to be kept as long as the model."""
    quiet = lc.llama_log_callback(lambda *_: None)
    lc.llama_log_set(quiet, ctypes.c_void_p(0))
    lc.llama_backend_init()
    return lc.llama_model_load_from_file(str(path).encode(), lc.llama_model_default_params()), quiet


def main():
    folder, dtype, rounds, *workloads = sys.argv[1:]
    vocab = json.loads(pathlib.Path(folder, "config.json").read_text(encoding="utf-8"))["vocab_size"]
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        path = pathlib.Path(temporary) / "model.gguf"
        write_gguf(folder, dtype, path)
        model, _quiet = load(path)
        for workload in workloads:
            prompts, samples, length, new = map(int, workload.split("x"))
            ids = np.random.default_rng(1).integers(0, vocab - 2, (prompts, length))
            with Generator(model, vocab, prompts * samples, prompts * (length + samples * new) + 256) as generator:
                times = [generator.run(ids, samples, new) for _ in range(int(rounds) + 1)][1:]
            results.append({"prefill_s": [t[0] for t in times], "generate_s": [t[1] for t in times]})
    print(json.dumps(results))


if __name__ == "__main__":
    main()
