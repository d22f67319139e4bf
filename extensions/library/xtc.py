"""Exclude top choices: now and then leave out all likely tokens but the least likely of them, for unusual words.

As its author describes it (p-e-w, https://github.com/oobabooga/text-generation-webui/pull/6335; there is no paper,
and arXiv 2202.00666 is the kind of truncation that it turns around): with a probability, of the tokens at or above
the threshold only the least likely stays. As there, nothing is left out where that would take the end or a line break
away.
"""

EXTENSION = {
    "name": "xtc",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "threshold": {"type": "number", "minimum": 0, "maximum": 1, "default": 0.1},
            "probability": {"type": "number", "minimum": 0, "maximum": 1, "default": 0.5},
            "temperature": {"type": "number", "exclusiveMinimum": 0, "maximum": 5, "default": 1.0},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 256},
            "seed": {"type": "integer"},
        },
        "additionalProperties": False,
    },
}

SAMPLER = """
def sample(logits, key, threshold, probability, kept, temperature):
    x = logits / temperature
    p = softmax(x)
    top = (p >= threshold) & (rank(x) < sum(p >= threshold) - 1)
    happens = (uniform(key) < probability) & (sum(top & (kept > 0.0)) == 0)
    return gumbel_argmax(where(top & happens, -1e30, x), key)
"""


async def main(request, lm):
    args = request.args
    kept = [0.0] * lm.model.vocab_size
    for token in lm.model.eos_token_ids + await lm.tokenize("\n"):
        kept[token] = 1.0
    sampler = await lm.program(
        SAMPLER,
        threshold=args["threshold"],
        probability=args["probability"],
        kept=kept,
        temperature=args["temperature"],
    )
    ctx = await lm.context(request.messages or request.prompt)
    answer = await ctx.generate(max_tokens=args["max_tokens"], seed=args.get("seed"), sampler=sampler, emit=True)
    return answer.text
