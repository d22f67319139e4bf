"""DRY: make a token unlikely that would go on with a repetition, the more the longer the repetition is.

As its author describes it (p-e-w, https://github.com/oobabooga/text-generation-webui/pull/5677; there is no paper,
the penalty that it replaces is that of arXiv 1909.05858): a token that followed an earlier copy of the last n tokens
loses `multiplier * base ** (n - allowed_length)`. Matches end at the breakers and, other than there, after 32 tokens,
where nothing can come any more anyway.
"""

EXTENSION = {
    "name": "dry",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "multiplier": {"type": "number", "minimum": 0, "maximum": 100, "default": 0.8},
            "base": {"type": "number", "minimum": 1, "maximum": 4, "default": 1.75},
            "allowed_length": {"type": "integer", "minimum": 1, "maximum": 32, "default": 2},
            "breakers": {"type": "array", "items": {"type": "string"}, "default": ["\n", ":", '"', "*"]},
            "temperature": {"type": "number", "exclusiveMinimum": 0, "maximum": 5, "default": 1.0},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 256},
            "seed": {"type": "integer"},
        },
        "additionalProperties": False,
    },
}

SAMPLER = """
def sample(logits, key, history, multiplier, base, allowed_length, breaker, temperature):
    same = history >= 0
    length = history * 0
    for back in range(1, 33):
        before = shift(history, back)
        same = same & (before == history[-back]) & (before >= 0) & (gather(breaker, before) == 0.0)
        length = length + same
    longest = scatter_max(zeros(vocab), history, length)
    penalty = where(longest >= allowed_length, multiplier * base ** (longest - allowed_length), 0.0)
    return gumbel_argmax((logits - penalty) / temperature, key)
"""


async def main(request, lm):
    args = request.args
    breaker = [0.0] * lm.model.vocab_size
    for text in args["breakers"]:
        breaker[(await lm.tokenize(text))[-1]] = 1.0
    sampler = await lm.program(
        SAMPLER,
        multiplier=args["multiplier"],
        base=args["base"],
        allowed_length=args["allowed_length"],
        breaker=breaker,
        temperature=args["temperature"],
    )
    ctx = await lm.context(request.messages or request.prompt)
    answer = await ctx.generate(max_tokens=args["max_tokens"], seed=args.get("seed"), sampler=sampler, emit=True)
    return answer.text
