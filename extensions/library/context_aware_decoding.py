"""Context-aware decoding: trust a given text over what the model remembers.

Follows Shi et al., "Trusting Your Evidence" (arXiv 2305.14739): tokens are
drawn from (1 + alpha) * logits(question with the text) - alpha * logits(question alone), both computed in one step. The
text stands before the last message, as in the paper's prompts.
"""

EXTENSION = {
    "name": "context_aware_decoding",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "text": {"type": "string", "minLength": 1},
            "alpha": {"type": "number", "minimum": 0, "maximum": 5, "default": 0.5},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 200},
            "temperature": {"type": "number", "minimum": 0, "maximum": 2, "default": 0.0},
            "seed": {"type": "integer", "default": 0},
        },
        "required": ["text"],
        "additionalProperties": False,
    },
}

AWARE = """
def sample(lanes, key, alpha, temperature):
    mixed = (1.0 + alpha) * lanes[0].logits - alpha * lanes[1].logits
    drawn = gumbel_argmax(mixed / max(temperature, 0.01), key)
    return where(temperature < 0.01, argmax(mixed), drawn)
"""


async def main(request, lm):
    args = request.args
    earlier, last = request.messages[:-1], request.messages[-1]
    informed = await lm.context([*earlier, {"role": last["role"], "content": args["text"] + "\n\n" + last["content"]}])
    alone = await lm.context(request.messages)
    fwd = lm.forward()
    await fwd.embed_next([informed, alone])
    await fwd.epilogue(await lm.program(AWARE, alpha=args["alpha"], temperature=args["temperature"]))
    tokens = await lm.pipeline().run_ahead(fwd, args["max_tokens"], seed=args["seed"], emit=True)
    return await lm.decode(tokens)
