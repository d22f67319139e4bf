"""Eta and epsilon sampling: keep the tokens above a probability, which falls where the model is unsure.

Follows Hewitt et al., "Truncation Sampling as Language Model Desmoothing" (arXiv 2210.15191): tokens below
min(epsilon, sqrt(epsilon) * exp(-entropy)) go; `adaptive=False` is the paper's epsilon sampling, with a fixed bound.
The likeliest token always stays.
"""

EXTENSION = {
    "name": "eta_epsilon",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "epsilon": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1, "default": 0.0009},
            "adaptive": {"type": "boolean", "default": True},
            "temperature": {"type": "number", "exclusiveMinimum": 0, "maximum": 5, "default": 1.0},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 256},
            "seed": {"type": "integer"},
        },
        "additionalProperties": False,
    },
}

SAMPLER = """
def sample(logits, key, epsilon, adaptive, temperature):
    x = logits / temperature
    eta = where(adaptive, min(epsilon, sqrt(epsilon) * exp(-entropy(x))), epsilon)
    kept = (softmax(x) >= eta) | (rank(x) == 0)
    return gumbel_argmax(where(kept, x, -1e30), key)
"""


async def main(request, lm):
    args = request.args
    sampler = await lm.program(
        SAMPLER, epsilon=args["epsilon"], adaptive=args["adaptive"], temperature=args["temperature"]
    )
    ctx = await lm.context(request.messages or request.prompt)
    answer = await ctx.generate(max_tokens=args["max_tokens"], seed=args.get("seed"), sampler=sampler, emit=True)
    return answer.text
