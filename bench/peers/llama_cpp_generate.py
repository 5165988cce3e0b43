"""llama.cpp generating: PROMPTS prompts of PROMPT_LENGTH tokens, SAMPLES completions of each with NEW tokens, sampled at temperature 1
from the whole distribution. Each prompt is read once and its cells are shared by its completions.

    llama_cpp_generate.py FOLDER DTYPE PROMPTS SAMPLES PROMPT_LENGTH NEW ROUNDS

Prints one JSON line: seconds of each round, for the prompts and for all of it."""

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
    def __init__(self, path, vocab, sequences, cells):
        self.quiet = lc.llama_log_callback(lambda *_: None)
        lc.llama_log_set(self.quiet, ctypes.c_void_p(0))
        lc.llama_backend_init()
        self.model = lc.llama_model_load_from_file(str(path).encode(), lc.llama_model_default_params())
        params = lc.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = cells, sequences, True
        params.n_batch = params.n_ubatch = BATCH
        params.n_threads = params.n_threads_batch = THREADS
        self.context = lc.llama_init_from_model(self.model, params)
        self.memory = lc.llama_get_memory(self.context)
        self.batch = lc.llama_batch_init(BATCH, 0, 1)
        self.vocab = vocab
        self.rng = np.random.default_rng(0)

    def decode(self, rows):
        """rows of (token, position, sequence, wants logits) -> logits of those that want them"""
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
                results.append(np.ctypeslib.as_array(at, shape=(count, self.vocab)).copy())
        return np.concatenate(results)

    def sample(self, logits):
        return np.argmax(logits + self.rng.gumbel(size=logits.shape).astype(np.float32), axis=1)

    def run(self, prompts, samples, new):
        lc.llama_memory_clear(self.memory, True)
        begin = time.perf_counter()
        length = len(prompts[0])
        rows = [(int(t), i, p * samples, i == length - 1) for p, prompt in enumerate(prompts) for i, t in enumerate(prompt)]
        logits = np.repeat(self.decode(rows), samples, axis=0)
        for p in range(len(prompts)):
            for s in range(1, samples):
                lc.llama_memory_seq_cp(self.memory, p * samples, p * samples + s, -1, -1)
        prefill = time.perf_counter() - begin
        for step in range(new):
            tokens = self.sample(logits)
            if step + 1 < new:
                logits = self.decode([(int(t), length + step, s, True) for s, t in enumerate(tokens)])
        return prefill, time.perf_counter() - begin


def main():
    folder, dtype = sys.argv[1:3]
    prompts, samples, length, new, rounds = map(int, sys.argv[3:8])
    vocab = json.loads(pathlib.Path(folder, "config.json").read_text(encoding="utf-8"))["vocab_size"]
    with tempfile.TemporaryDirectory() as temporary:
        path = pathlib.Path(temporary) / "model.gguf"
        # In a process of its own: torch, which it needs, stays out of this one.
        subprocess.run([sys.executable, str(pathlib.Path(__file__).parent / "write_gguf.py"), folder, dtype, str(path)], check=True)
        cells = prompts * (length + samples * new) + 256
        generator = Generator(path, vocab, prompts * samples, cells)
        ids = np.random.default_rng(1).integers(0, vocab - 2, (prompts, length))
        times = [generator.run(ids, samples, new) for _ in range(rounds + 1)][1:]
    print(json.dumps({"prefill_s": [t[0] for t in times], "generate_s": [t[1] for t in times]}))


main()
