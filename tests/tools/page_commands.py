#!/usr/bin/env python3
"""Every `tandem` command of README.md, docs/ and the examples' pages runs as it stands there.

    python3 -B tests/tools/page_commands.py PROGRAM RUN_COMMANDS

RUN_COMMANDS is what run_commands.cc beside this file makes: it runs the commands. Those that start ranks, and scripts, get
PROGRAM.

Commands are the lines of code blocks and the texts in `backquotes` that begin with `tandem` and a verb. Each runs in a
folder that holds what the pages name: DIR (the golden model), FILE.jsonl, job.toml, runs/a and so on. `train`, `sft` and
`launch` get --dry-run, which reads and checks everything; all other verbs do their work. What changes a command:

    ...             stands for the flags of a small run (BASE), less those that the command gives
    --device cuda and npu are the CPU here
    8 processes     are 2

SKIPPED says which commands do not run here and why; a row that matches no command is an error. A transcript of an error
behind a command (`tandem: error: ...`) is compared with what the program says, and the tables of docs/TUNING.md with the
memory plan. The scripts of the pages and of the examples run too: convert.py, the demos (made small), the lines of
docs/METRICS.md that print rewards, keep_going.sh of docs/RUNS.md. Prints a line for each command that
fails; exit code 1."""

import contextlib
import http.server
import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/golden/models/qwen3-tied"
SPARSE_MODEL = ROOT / "tests/golden/models/qwen3-moe"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*/README.md"))]
VERBS = "train|sft|launch|generate|engine|score|scorer|eval|view|export|plan|bench"
COMMAND = re.compile(rf"^(?:tandem|build/release/src/cli/tandem) (?:{VERBS})\b")

# What "..." stands for.
BASE = {
    "train": {"--colocate": [], "--hf-checkpoint": ["DIR"], "--prompt-data": ["FILE.jsonl"], "--rm-type": ["exact"],
              "--rollout-batch-size": ["4"], "--n-samples-per-prompt": ["4"], "--global-batch-size": ["16"],
              "--num-rollout": ["1"], "--rollout-max-response-len": ["4"], "--save": ["runs/new"]},
    "sft": {"--hf-checkpoint": ["DIR"], "--prompt-data": ["answers.jsonl"], "--global-batch-size": ["2"],
            "--num-rollout": ["1"], "--save": ["runs/new_sft"]},
    "eval": {"--hf-checkpoint": ["DIR"], "--eval-prompt-data": ["held_out", "FILE.jsonl"], "--rm-type": ["exact"],
             "--eval-max-response-len": ["4"]},
    "generate": {"--hf-checkpoint": ["DIR"], "--prompt-data": ["FILE.jsonl"], "--rollout-max-response-len": ["4"]},
}
# The published shapes: hidden size, intermediate size, layers, heads, whether the head is the embedding.
SHAPES = {"Qwen3-0.6B": (1024, 3072, 28, 16, True), "Qwen3-1.7B": (2048, 6144, 28, 16, True),
          "Qwen3-4B": (2560, 9728, 36, 32, True), "Qwen3-8B": (4096, 12288, 36, 32, False),
          "Qwen3-30B-A3B": (2048, 6144, 48, 32, False)}
# Keys of the sparse shapes, in addition to those that all have.
SPARSE_KEYS = {"Qwen3-30B-A3B": {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_key_value_heads": 4, "num_experts": 128,
    "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True, "decoder_sparse_step": 1,
    "mlp_only_layers": []}}
PLANNED = ["--device", "cuda", "--rollout-max-prompt-len", "1024", "--rollout-batch-size", "32",
           "--n-samples-per-prompt", "8"]
REWARD_FLAGS = {"--rm-type", "--custom-rm-path", "--rm-url"}
# What of a command names a size that a test has no time for.
SMALLER = {"--nproc-per-node": "2", "--actor-num-gpus-per-node": "2", "--rollout-num-gpus": "2",
           "--rollout-max-response-len": "4", "--n-samples-per-eval-prompt": "2"}
# Parts of commands that do not run here.
SKIPPED = {
    "--nnodes": "needs two machines (tests/mesh/two_hosts.sh)",
    "--rollout-listen": "needs a secret and an address of this machine (tests/cli/workers/network_workers_test.cc)",
    "--rollout-join-address": "joins a run (tests/cli/workers/network_workers_test.cc)",
    "--opd-teacher-address": "asks a process that scores (tests/cli/workers/scorer_test.cc)",
    "--listen 10.0.0.9": "scores until it is stopped (tests/cli/workers/scorer_test.cc)",
    "bench --device": "measures a GPU",
    "--shape qwen3-0.6b": "takes minutes on a CPU",
    "--ckpt-step 40": "needs a run of 40 rollouts (tests/cli/resume/resume_test.cc)",
    "--lr-decay-iters 300": "needs a run that decays (tests/cli/resume/sft_resume_test.cc)",
    "runs/quiz": "follows a warm-up that takes minutes (tests/cli/multi_turn_test.cc runs the functions)",
    "runs/base": "follows examples/arithmetic/demo.sh, which takes minutes",
    "--use-wandb": "needs a package that is installed on demand (tests/cli/looking/wandb_test.cc)",
    "--use-trackio": "needs a package that is installed on demand (tests/cli/looking/trackers_test.cc)",
    "--use-mlflow": "needs a package that is installed on demand (tests/cli/looking/trackers_test.cc)",
    "--cpu-isa avx2": "asks for kernels that not every machine has",
}


def commands_of(page):
    """(line, command, transcript of the error behind it or None) of each command of a page."""
    text = page.read_text(encoding="utf-8")
    found, blocks = [], list(re.finditer(r"^```(\w*)\n(.*?)^```", text, re.S | re.M))
    for i, block in enumerate(blocks):
        line = text[: block.start()].count("\n") + 2
        behind = blocks[i + 1].group(2) if i + 1 < len(blocks) and not text[block.end():blocks[i + 1].start()].strip() else ""
        lines = block.group(2).split("\n")
        while lines:
            number, command = line, lines.pop(0)
            line += 1
            while command.endswith("\\") and lines:
                command = command[:-1] + lines.pop(0).strip()
                line += 1
            if COMMAND.match(command):
                found.append((number, command, behind if behind.startswith("tandem: error: ") else None))
    outside = re.sub(r"^```.*?^```", lambda m: "\n" * m.group().count("\n"), text, flags=re.S | re.M)
    for inline in re.finditer(r"`(tandem [^`]*)`", outside):
        command = " ".join(inline.group(1).split())
        # A name of a verb is no command.
        if COMMAND.match(command) and "--" in command and not command.endswith(("--help", "--")):
            found.append((outside[: inline.start()].count("\n") + 1, command, None))
    return found


def words_of(command):
    """The words of a command, made small and whole."""
    command = re.sub(r"\[(--[^\]]*)\]", r"\1", command)  # "[--json]" may be given
    command = re.sub(r"\.\.\.[a-z ]+\.\.\.", "...", command)  # "...the flags of your script..."
    words = shlex.split(command, comments=True)[1:]
    verb = "train" if words[0] == "launch" else words[0]
    for i in range(len(words) - 1):
        if words[i] in SMALLER and words[i + 1].isdigit() and int(words[i + 1]) > 2:
            words[i + 1] = SMALLER[words[i]]
        if words[i] == "--device" and words[i + 1] in ("cuda", "npu") and verb != "plan":
            words[i + 1] = "cpu"
    given = set(words)
    is_open = "..." in given
    words = [word for word in words if word != "..."]
    if is_open and verb in BASE:
        for flag, values in BASE[verb].items():
            is_given = flag in given or (flag == "--rm-type" and given & REWARD_FLAGS) or (
                flag == "--colocate" and "--rollout-num-gpus" in given)
            if not is_given:
                words += [flag, *values]
    if verb in ("train", "sft"):
        words.append("--dry-run")
        if "--config" not in given:
            words.append("--no-use-tensorboard")
    return words


def write_judge(directory):
    """Makes a reward model of the golden model: its files, and a head of ones beside them."""
    shutil.copytree(MODEL, directory)
    weights = directory / "model.safetensors"
    names = json.loads(weights.read_bytes()[8 : 8 + int.from_bytes(weights.read_bytes()[:8], "little")])
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    width = config["hidden_size"]
    head = json.dumps({"score.weight": {"dtype": "F32", "shape": [1, width], "data_offsets": [0, 4 * width]}}).encode()
    (directory / "head.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + struct.pack("<f", 1.0) * width)
    weights.rename(directory / "decoder.safetensors")
    shards = {name: "decoder.safetensors" for name in names if name != "__metadata__"} | {"score.weight": "head.safetensors"}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}), encoding="utf-8")
    config["architectures"] = ["Qwen3ForSequenceClassification"]
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")


def write_inputs(folder, commands):
    """What the pages name, under these names."""
    (folder / "DIR").symlink_to(MODEL)
    write_judge(folder / "JUDGE")
    (folder / "SPARSE").symlink_to(SPARSE_MODEL)
    (folder / "examples").symlink_to(ROOT / "examples")
    problems = [{"prompt": f"{i}+{i + 1}=", "label": str(2 * i + 1), "response": str(2 * i + 1),
                 "instruction_id_list": ["punctuation:no_comma"]} for i in range(210)]  # fmt: skip
    answers = [{"prompt": "1+1=", "response": "2"}, {"prompt": "2+3=", "response": "5"}] * 20

    def write_lines(name, records):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")

    for name in ("FILE.jsonl", "a.jsonl", "b.jsonl", "gsm8k.jsonl", "runs/gsm8k-data/tiny.jsonl"):
        write_lines(name, problems)
    for name in ("answers.jsonl", "OTHER.jsonl", "SFT.jsonl"):
        write_lines(name, answers)
    write_lines("TESTS.jsonl", [{"prompt": "Write add(a, b).", "label": ["assert add(1, 2) == 3"]}] * 40)
    write_lines("PAIRS.jsonl", [{"prompt": "1+1=", "chosen": "2", "rejected": "three"}] * 40)
    import pyarrow
    import pyarrow.parquet
    rows = [{"prompt": problem["prompt"], "reward_model": {"ground_truth": problem["label"]}} for problem in problems]
    (folder / "gsm8k").mkdir()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "gsm8k/train.parquet")
    reward = "def {}(prompts, completions, **kwargs):\n    return [1.0] * len(completions)\n"
    (folder / "reward.py").write_text("".join(reward.format(name) for name in ("reward", "format", "brevity")))
    for shape, (hidden, mlp, layers, heads, is_tied) in SHAPES.items():
        (folder / shape).mkdir()
        (folder / shape / "config.json").write_text(json.dumps({
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "bfloat16",
            "vocab_size": 151936, "hidden_size": hidden, "intermediate_size": mlp, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960,
            "rope_theta": 1000000, "rms_norm_eps": 1e-06, "tie_word_embeddings": is_tied, "hidden_act": "silu",
            "attention_bias": False, "bos_token_id": 151643, "eos_token_id": 151645} | SPARSE_KEYS.get(shape, {})))
    page = (ROOT / "docs/SAMPLING.md").read_text(encoding="utf-8")
    agent = re.search(r"```python\n(from tandem.rollout .*?)```", page, re.S).group(1)
    (folder / "agent.py").write_text("async def look_up(text):\n    return text\n\n\n" + agent)
    page = (ROOT / "docs/ADVANTAGES.md").read_text(encoding="utf-8")
    (folder / "advantages.py").write_text(re.search(r"```python\n(.*?)```", page, re.S).group(1))
    base = BASE["train"]
    (folder / "job.toml").write_text("".join(
        f"{flag[2:]} = {values[0] if values and values[0].isdigit() else 'true' if not values else json.dumps(values[0])}\n"
        for flag, values in base.items() if flag != "--save"))
    (folder / "eval.toml").write_text(
        '[[eval.datasets]]\nname = "held_out"\npath = "FILE.jsonl"\nrm_type = "exact"\nmax_response_len = 4\n')
    # Runs that the pages look at, resume and export.
    for save, more in {"runs/a": [], "runs/adapter": ["--lora-rank", "8", "--lr", "1e-4"]}.items():
        words = ["train", *[w for flag, values in base.items() if flag != "--save" for w in (flag, *values)], "--save", save, *more]
        result = commands.run(folder, words)
        if result.returncode != 0:
            sys.exit(f"{save} cannot be made: {result.stderr}")
    for copy in ("runs/b", "runs/x", "runs/seed1", "runs/seed2", "runs/gsm8k", "RUN"):
        shutil.copytree(folder / "runs/a", folder / copy)
        config = folder / copy / "config.toml"
        config.write_text(config.read_text(encoding="utf-8").replace('"runs/a"', f'"{copy}"'), encoding="utf-8")


class Answer(http.server.BaseHTTPRequestHandler):
    """A reward service: 1 for every sample."""

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps([1.0] * len(request) if isinstance(request, list) else 1.0).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@contextlib.contextmanager
def as_new(folder, words):
    """While the command runs, the run that it begins is not there yet."""
    save = folder / words[words.index("--save") + 1] if "--save" in words and "--load" not in words else None
    aside = folder / "aside"
    if save is None or not save.exists():
        yield
        return
    save.rename(aside)
    try:
        yield
    finally:
        if save.exists():
            shutil.rmtree(save)
        aside.rename(save)


class Commands:
    """Runs `tandem WORDS` in a folder, by run_commands. `tandem launch` starts its own file again, so it is the program."""

    def __init__(self, program, runner):
        self._program = program
        self._environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        self._runner = subprocess.Popen([runner], env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)

    def run(self, folder, words):
        if words[0] == "launch":
            return subprocess.run([self._program, *words], cwd=folder, env=self._environment, capture_output=True,
                                  text=True, timeout=300, stdin=subprocess.DEVNULL)
        print(json.dumps({"folder": str(folder), "words": words}), file=self._runner.stdin, flush=True)
        answer = json.loads(self._runner.stdout.readline())
        return subprocess.CompletedProcess(words, answer["code"], answer["out"], answer["err"])


def expanded(folder, words):
    """With names that a shell would have matched: runs/seed*."""
    result = []
    for word in words:
        matched = sorted(str(path.relative_to(folder)) for path in folder.glob(word)) if "*" in word else []
        result += matched or [word]
    return result


def wrong_tables(commands, folder):
    """What docs/TUNING.md says of memory in its two tables, against the plan."""
    page = (ROOT / "docs/TUNING.md").read_text(encoding="utf-8")

    def total(flags):  # GiB alive at once in the train phase
        said = commands.run(folder, ["plan", "--hf-checkpoint", "Qwen3-4B", *PLANNED, *flags.split()]).stdout
        return re.search(r"^total .* ([\d.]+) GiB$", said, re.M).group(1)

    rows = re.findall(r"^\| `(--[^`]*)`[^|]*\| ([\d.]+) \|", page, re.M)
    rows.append(("", re.search(r"it is ([\d.]+) without any of them", page).group(1)))
    wrong = [f"docs/TUNING.md: {flags or 'without flags'}: the page has {shown} GiB and the plan {total(flags)}"
             for flags, shown in rows if f"{float(total(flags)):.1f}" != shown]
    models = re.findall(r"^\| (Qwen3-[\d.]+B) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", page, re.M)
    flags = ["", "--offload-optimizer", "--offload-optimizer --recompute-granularity full"]
    for model, *cells in models:
        for cell, flag in zip(cells, flags):
            result = commands.run(folder, ["plan", "--hf-checkpoint", model, *PLANNED, "--device-memory-bytes",
                                           str(80 << 30), *flag.split()])
            needs = re.search(r"needs ([\d.]+) GiB", result.stderr)
            answer = f"no: {float(needs.group(1)):.1f} GiB" if needs else "fits"
            if not cell.startswith(answer):
                wrong.append(f"docs/TUNING.md: {model} {flag}: the page says '{cell}' and the plan '{answer}'")
    return wrong if len(rows) > 6 and len(models) > 3 else wrong + ["docs/TUNING.md: its tables are not found"]


def script_of(page, beginning):
    """The code block of a page that has this text, with its language taken off."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = [block for block in re.findall(r"^```\w*\n(.*?)^```", text, re.S | re.M) if beginning in block]
    if len(blocks) != 1:
        sys.exit(f"{page} has {len(blocks)} code blocks with '{beginning}'")
    return blocks[0]


def shell(folder, script, **variables):
    """What a line of a page does in a shell, where `tandem` is the program."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "PATH": f"{folder}/bin:{os.environ['PATH']}", **variables}
    return subprocess.run(["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=300,
                          stdin=subprocess.DEVNULL)


def failed_scripts(program, folder):
    """What goes wrong in scripts that stand in the pages and the examples."""
    failures = []
    python = shlex.quote(sys.executable)

    def check(place, result, *says):
        missing = [text for text in says if text not in result.stdout]
        if result.returncode != 0 or missing:
            failures.append(f"{place}: ends with {result.returncode} and says\n    {result.stdout[-300:]}\n"
                            f"    {result.stderr[-600:]}\n    which lacks {missing}")

    # A `tandem` that has time for eight problems of a demo's held-out ones.
    (folder / "bin").mkdir()
    tandem = folder / "bin/tandem"
    tandem.write_text("#!/bin/bash\nfor word; do\n  shift\n  set -- \"$@\" \"${word/%held_out.jsonl/held_out.jsonl@[:8]}\"\n"
                      f"done\nexec {shlex.quote(program)} \"$@\"\n", encoding="utf-8")
    tandem.chmod(0o755)

    lines = script_of("examples/gsm8k/README.md", "mkdir -p runs/gsm8k-data").split("\n")
    for line in lines[:2]:
        check("examples/gsm8k/README.md", shell(folder, line.replace(".venv/bin/python", python)),
              *["96 problems of 96 rows"] * ("convert.py" in line))
    import pyarrow
    import pyarrow.parquet
    rows = [{"question": f"{i} + 1?", "answer": f"It is <<{i}+1={i + 1}>>.\n#### {i + 1}"} for i in (1, 2, 2, 1199)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "train-00000-of-00001.parquet")
    published = script_of("examples/gsm8k/README.md", "python convert.py").replace("\\\n", "").split("\n")[0]
    check("examples/gsm8k/README.md", shell(folder, published.replace("python convert.py",
                                                                       f"{python} examples/gsm8k/convert.py")),
          "gsm8k.jsonl: 3 problems of 4 rows")
    labels = [json.loads(line)["label"] for line in (folder / "gsm8k.jsonl").read_text(encoding="utf-8").splitlines()]
    if labels != ["2", "3", "1200"]:
        failures.append(f"examples/gsm8k/convert.py: the labels are {labels}")

    small = "--num-rollout 1 --rollout-batch-size 2 --n-samples-per-prompt 2 --global-batch-size 4 --no-use-tensorboard"
    for demo in ("calculator", "arithmetic"):
        ran = shell(folder, f"{ROOT}/examples/{demo}/demo.sh {folder}/runs/{demo} {small}", TANDEM=str(tandem),
                    PYTHON=sys.executable, WARM_UP_STEPS="1")
        check(f"examples/{demo}/demo.sh", ran, "== after", "(8 samples)", f"the run: {folder}/runs/{demo} (")

    rewards = script_of("docs/METRICS.md", ".venv/bin/python - RUN")
    check("docs/METRICS.md", shell(folder, rewards.replace(".venv/bin/python", python).replace(" RUN ", " runs/a ")), "0 ")

    keep_going = script_of("docs/RUNS.md", "# keep_going.sh RUN COMMAND")
    (folder / "keep_going.sh").write_text(keep_going, encoding="utf-8")
    line = next(line for line in script_of("docs/RUNS.md", "bash keep_going.sh $RUN").split("\n") if "bash" in line
                and "keep_going" in line)
    check("docs/RUNS.md", shell(folder, line.replace("srun ", ""), RUN="runs/kept_going"))
    for code, last in ((75, "saved"), (0, "  done after 1 of 1 rollouts"), (3, "")):
        # The log ends like that of a run that was stopped, one that is finished, and one that failed.
        (folder / "runs/kept_going/log.txt").write_text(last + "\n", encoding="utf-8")
        ended = shell(folder, f"bash keep_going.sh runs/kept_going sh -c 'exit {3 if code == 3 else 0}'").returncode
        if ended != code:
            failures.append(f"docs/RUNS.md: keep_going.sh ends with {ended} where it should with {code}")
    return failures


def main():
    program = str(Path(sys.argv[1]).resolve())
    commands = Commands(program, sys.argv[2])
    used, failures, number = set(), [], 0
    service = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder, commands)
        for page in PAGES:
            for line, command, transcript in commands_of(page):
                place = f"{page.relative_to(ROOT)}:{line}"
                skipped = [part for part in SKIPPED if part in command]
                if skipped:
                    used.update(skipped)
                    continue
                number += 1
                words = expanded(folder, words_of(command.replace("127.0.0.1:8000", f"127.0.0.1:{service.server_port}")))
                with as_new(folder, words):
                    result = commands.run(folder, words)
                said = " ".join(result.stderr.split())
                if transcript is not None:
                    wanted = " ".join(transcript.split()).removesuffix("...").strip()
                    if result.returncode != 2 or wanted not in said:
                        failures.append(f"{place}: the page shows\n    {wanted}\nand `tandem {' '.join(words)}` says\n    {said}")
                elif result.returncode != 0:
                    failures.append(f"{place}: `tandem {' '.join(words)}` ends with {result.returncode}: {said[-600:]}")
        failures += wrong_tables(commands, folder)
        failures += failed_scripts(program, folder)
    failures += [f"SKIPPED has '{part}', which no page holds" for part in SKIPPED if part not in used]
    for failure in failures:
        print(failure)
    print(f"{number} commands of {len(PAGES)} pages ran, {len(failures)} failed")
    return 1 if failures or number < 30 else 0


if __name__ == "__main__":
    sys.exit(main())
