"""Watermark by a green list, and its detector: a secret part of the vocabulary that the token before names is likelier.

Follows Kirchenbauer et al., "A Watermark for Large Language Models" (arXiv 2301.10226), the soft form with one token
of context: gamma of the vocabulary is green, delta is added to its logits. `detect` counts green tokens in a text and
tells the z-score of the paper's test, which needs neither model nor prompt; above 4 chance is one in 30,000. Green is
a keyed hash of (token before, token) instead of a permutation, so the detector hashes one pair a token; it is no
cryptographic hash.
"""

EXTENSION = {
    "name": "watermark_greenlist",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "secret": {"type": "integer", "minimum": 0, "maximum": 4294967295, "default": 15485863},
            "gamma": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1, "default": 0.25},
            "delta": {"type": "number", "minimum": 0, "maximum": 50, "default": 2.0},
            "detect": {"type": "string"},
            "temperature": {"type": "number", "exclusiveMinimum": 0, "maximum": 5, "default": 1.0},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 256},
            "seed": {"type": "integer"},
        },
        "additionalProperties": False,
    },
}

SAMPLER = """
def sample(logits, key, prev, secret, gamma, delta, temperature):
    green = hash_uniform(secret * 16777216 + prev, vocab) < gamma
    return gumbel_argmax((logits + where(green, delta, 0.0)) / temperature, key)
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
    return (2147483648 - (value & 2147483647)) / 2147483648


def examined(tokens, secret, gamma):
    """The paper's one-proportion z-test. Every pair counts once, or a loop in the text would count as evidence."""
    pairs = {(tokens[at - 1], tokens[at]) for at in range(1, len(tokens))}
    green = sum(hash_uniform(secret * 16777216 + before, token) < gamma for before, token in pairs)
    z = (green - gamma * len(pairs)) / math.sqrt(max(len(pairs), 1) * gamma * (1 - gamma))
    return {"z": z, "green": green, "pairs": len(pairs)}


async def main(request, lm):
    args = request.args
    if "detect" in args:
        return examined(await lm.tokenize(args["detect"]), args["secret"], args["gamma"])
    sampler = await lm.program(
        SAMPLER,
        secret=args["secret"],
        gamma=args["gamma"],
        delta=args["delta"],
        temperature=args["temperature"],
    )
    ctx = await lm.context(request.messages or request.prompt)
    answer = await ctx.generate(max_tokens=args["max_tokens"], seed=args.get("seed"), sampler=sampler, emit=True)
    return answer.text
