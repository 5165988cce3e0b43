"""The engine, for functions of --custom-generate-function-path (docs/SAMPLING.md):

    from tandem.rollout import generate

    async def turns(args, sample, sampling_params):
        completion = await generate(sample.tokens, sampling_params)

`generate` takes token ids and returns `tokens`, `log_probs`, `finish_reason` ("stop" or "length") and `text`; what
sampling_params leave out is as the run has it. `tokenizer` is the model's. `endpoint` (docs/AGENTS.md) is where agents
ask: `base_url`, `api_key`, `model`, and `samples()`, what came of it. All are there only while such a function runs.
"""

try:
    from tandem_worker.user_functions.engine_calls import current, endpoint, generate
except ImportError:  # outside of Tandem's worker processes

    def current():
        raise RuntimeError("tandem.rollout is there for functions of --custom-generate-function-path alone")

    async def generate(input_ids, sampling_params=None):
        current()

    def endpoint():
        current()


def tokenizer():
    """The model's tokenizer: tokenizer(text)["input_ids"], .encode(text), .decode(ids), .apply_chat_template(messages)."""
    return current().tokenizer


__all__ = ["endpoint", "generate", "tokenizer"]
