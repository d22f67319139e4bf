"""Watermark without a trace in the distribution, and its detector: the noise of a draw is a secret hash of its context.

Aaronson's scheme, as Fernandez et al., "Three Bricks to Consolidate Watermarks" (arXiv 2308.00113) write it down: the
token is argmax(log(u) / p), which on average over secrets is a draw from p, with u a keyed hash of the last `window`
tokens. `detect` sums -log(1 - u) over a text, which is 1 a token without the mark, and tells how many deviations it
is above that. As in that paper a context counts once; here it is also marked once, and drawn freely when it comes
again, which keeps texts out of loops. The hash is no cryptographic one.
"""

EXTENSION = {
    "name": "gumbel_watermark",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "secret": {"type": "integer", "minimum": 0, "maximum": 4294967295, "default": 15485863},
            "window": {"type": "integer", "minimum": 1, "maximum": 8, "default": 2},
            "detect": {"type": "string"},
            "temperature": {"type": "number", "exclusiveMinimum": 0, "maximum": 5, "default": 1.0},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 256},
            "seed": {"type": "integer"},
        },
        "additionalProperties": False,
    },
}

SAMPLER = """
def sample(logits, key, history, secret, temperature):
    name = secret
    same = history >= 0
    for back in range(WINDOW):
        name = name * 6364136223846793005 + history[-1 - back]
        same = same & (shift(history, back) == history[-1 - back])
    x = logits / temperature
    marked = argmax(x - log(-log(hash_uniform(name, vocab))))
    return where(sum(same) == 1, marked, gumbel_argmax(x, key))
"""

BITS32 = 4294967295
BITS64 = 18446744073709551615


def hash_uniform(name, index):
    """What `hash_uniform` of device programs is."""
    key = (name + 0x9E3779B97F4A7C15) & BITS64
    key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & BITS64
    key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & BITS64
    key = key ^ (key >> 31)
    value = ((index ^ (index >> 16)) * 0x7FEB352D) & BITS32
    value = ((value ^ (value >> 15)) * 0x846CA68B) & BITS32
    value = value ^ (value >> 16) ^ (key & BITS32)
    value = (value * 0x7FEB352D) & BITS32
    value = value ^ (value >> 15) ^ (key >> 32)
    value = (value * 0x846CA68B) & BITS32
    return (2147483648 - (value & 2147483647)) / 2147483648 * (1 - 2.0**-24)


def examined(tokens, secret, window):
    """The sum of the scores, and how far it lies above that of a text without the mark."""
    seen = set()
    total = 0.0
    for at in range(window, len(tokens)):
        context = tuple(tokens[at - window : at])
        if context in seen:
            continue
        seen.add(context)
        name = secret
        for token in reversed(context):
            name = (name * 6364136223846793005 + token) & BITS64
        total -= math.log(1 - hash_uniform(name, tokens[at]))
    count = len(seen)
    return {"z": (total - count) / math.sqrt(max(count, 1)), "score": total, "contexts": count}


async def main(request, lm):
    args = request.args
    if "detect" in args:
        return examined(await lm.tokenize(args["detect"]), args["secret"], args["window"])
    source = SAMPLER.replace("WINDOW", str(args["window"]))
    sampler = await lm.program(source, secret=args["secret"], temperature=args["temperature"])
    ctx = await lm.context(request.messages or request.prompt)
    answer = await ctx.generate(max_tokens=args["max_tokens"], seed=args.get("seed"), sampler=sampler, emit=True)
    return answer.text
