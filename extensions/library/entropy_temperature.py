"""Dynamic temperature: draw cool where the model is sure, and up to the full temperature where it is not.

Follows Zhang et al., "EDT: Improving Large Language Models' Generation by Entropy-based Dynamic Temperature Sampling"
(arXiv 2403.14541): the temperature of a step is `temperature * base ** (theta / entropy)`, `base` being the paper's
0.8. As there, what is certain (entropy near 0) is drawn near temperature 0.
"""

EXTENSION = {
    "name": "entropy_temperature",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "base": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1, "default": 0.8},
            "theta": {"type": "number", "minimum": 0, "maximum": 100, "default": 0.1},
            "temperature": {"type": "number", "exclusiveMinimum": 0, "maximum": 5, "default": 1.0},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 256},
            "seed": {"type": "integer"},
        },
        "additionalProperties": False,
    },
}

SAMPLER = """
def sample(logits, key, base, theta, temperature):
    warmth = temperature * base ** (theta / entropy(logits))
    return gumbel_argmax(logits / max(warmth, 1e-4), key)
"""


async def main(request, lm):
    args = request.args
    sampler = await lm.program(SAMPLER, base=args["base"], theta=args["theta"], temperature=args["temperature"])
    ctx = await lm.context(request.messages or request.prompt)
    answer = await ctx.generate(max_tokens=args["max_tokens"], seed=args.get("seed"), sampler=sampler, emit=True)
    return answer.text
