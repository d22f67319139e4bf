"""Locally typical sampling: keep the tokens whose surprise is nearest to what the model expects, up to a mass.

Follows Meister et al., "Locally Typical Sampling" (arXiv 2202.00666): tokens in the order of the distance between
their information content and the entropy, as many as have the probability tau together.
"""

EXTENSION = {
    "name": "typical",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "tau": {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "default": 0.9},
            "temperature": {"type": "number", "exclusiveMinimum": 0, "maximum": 5, "default": 1.0},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 256},
            "seed": {"type": "integer"},
        },
        "additionalProperties": False,
    },
}

SAMPLER = """
def sample(logits, key, tau, temperature):
    x = logits / temperature
    logp = log_softmax(x)
    place = rank(-abs(entropy(x) + logp))
    mass = cumsum(scatter(zeros(vocab), place, exp(logp)))
    return gumbel_argmax(where(place <= sum(mass < tau), x, -1e30), key)
"""


async def main(request, lm):
    args = request.args
    sampler = await lm.program(SAMPLER, tau=args["tau"], temperature=args["temperature"])
    ctx = await lm.context(request.messages or request.prompt)
    answer = await ctx.generate(max_tokens=args["max_tokens"], seed=args.get("seed"), sampler=sampler, emit=True)
    return answer.text
