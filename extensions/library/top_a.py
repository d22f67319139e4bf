"""Top-a sampling: keep the tokens whose probability is at least a times the square of the greatest.

As the author of RWKV describes it (https://github.com/BlinkDL/RWKV-LM; the method has no paper, the model's is arXiv
2305.13048): the surer the model, the fewer tokens are left. His further power is not here.
"""

EXTENSION = {
    "name": "top_a",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "a": {"type": "number", "minimum": 0, "maximum": 1, "default": 0.2},
            "temperature": {"type": "number", "exclusiveMinimum": 0, "maximum": 5, "default": 1.0},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 256},
            "seed": {"type": "integer"},
        },
        "additionalProperties": False,
    },
}

SAMPLER = """
def sample(logits, key, a, temperature):
    p = softmax(logits / temperature)
    most = max(p)
    return gumbel_argmax(where(p >= a * most * most, logits / temperature, -1e30), key)
"""


async def main(request, lm):
    args = request.args
    sampler = await lm.program(SAMPLER, a=args["a"], temperature=args["temperature"])
    ctx = await lm.context(request.messages or request.prompt)
    answer = await ctx.generate(max_tokens=args["max_tokens"], seed=args.get("seed"), sampler=sampler, emit=True)
    return answer.text
