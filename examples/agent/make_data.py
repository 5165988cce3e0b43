"""The model and the problems of examples/arithmetic for an agent that may call a tool.

    python make_data.py OUT_DIRECTORY

model/           the model of examples/arithmetic with a chat template that shows tools and their calls
exercises.jsonl  what the warm-up imitates: three problems in ten are given to the tool, and what it says is written down;
                 the others are answered as carelessly as before. The tool says any number there, so that nothing but
                 copying helps.
train.jsonl      what GRPO practises on, with the right answers as labels.
held_out.jsonl   what neither sees.
"""

import json
import pathlib
import random
import shutil
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "arithmetic"))
import make_problems  # noqa: E402

NUM_EXERCISES = 6000
ASKED = 0.3
TOOLS = [{"type": "function", "function": {"name": "calculate"}}]
TEMPLATE = (
    "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "{% if message.role == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_model(folder):
    shutil.copytree(HERE.parent / "arithmetic" / "checkpoint", folder, dirs_exist_ok=True)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "chat_template": TEMPLATE}, indent=2) + "\n", encoding="utf-8")


def conversation(question, answer, rng):
    if rng.random() >= ASKED:
        return [("user", question), ("assistant", str(make_problems.careless(answer, rng)))]
    said = str(rng.randint(-99, 198))
    call = {"name": "calculate", "arguments": {"problem": question.rstrip("=")}}
    asks = f"<tool_call>{json.dumps(call)}</tool_call>"
    return [("user", question), ("assistant", asks), ("tool", said), ("assistant", said)]


def write(path, rows):
    with open(path, "w", encoding="utf-8") as out:
        for question, answer in rows:
            prompt = [{"role": "user", "content": question}]
            line = {"prompt": prompt, "label": str(answer), "metadata": {"question": question}}
            out.write(json.dumps(line) + "\n")


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    make_model(folder / "model")
    rng = random.Random(0)
    rows = list(make_problems.problems())
    rng.shuffle(rows)
    with open(folder / "exercises.jsonl", "w", encoding="utf-8") as out:
        for question, answer in rows[:NUM_EXERCISES]:
            messages = [{"role": role, "content": text} for role, text in conversation(question, answer, rng)]
            out.write(json.dumps({"messages": messages, "tools": TOOLS}) + "\n")
    write(folder / "held_out.jsonl", rows[NUM_EXERCISES : NUM_EXERCISES + 200])
    write(folder / "train.jsonl", rows[NUM_EXERCISES + 200 :])


if __name__ == "__main__":
    main()
