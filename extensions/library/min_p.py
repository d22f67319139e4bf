"""Min-p sampling: keep the tokens that are at least a fraction as likely as the likeliest, and draw from those.

Follows Nguyen et al., "Turning Up the Heat: Min-p Sampling" (arXiv 2407.01082). The server has `min_p` as a field of
any request; this is the same as a device program, token for token, to begin one's own truncation with.
"""

EXTENSION = {
    "name": "min_p",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "min_p": {"type": "number", "minimum": 0, "maximum": 1, "default": 0.1},
            "temperature": {"type": "number", "exclusiveMinimum": 0, "maximum": 5, "default": 1.0},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 256},
            "seed": {"type": "integer"},
        },
        "additionalProperties": False,
    },
}

SAMPLER = """
def sample(logits, key, min_p, temperature):
    ratio = exp((logits - max(logits)) / temperature)
    return gumbel_argmax(where(ratio >= min_p, logits / temperature, -1e30), key)
"""


async def main(request, lm):
    args = request.args
    sampler = await lm.program(SAMPLER, min_p=args["min_p"], temperature=args["temperature"])
    ctx = await lm.context(request.messages or request.prompt)
    answer = await ctx.generate(max_tokens=args["max_tokens"], seed=args.get("seed"), sampler=sampler, emit=True)
    return answer.text
