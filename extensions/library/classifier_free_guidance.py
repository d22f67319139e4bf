"""Classifier-free guidance: draw from what the prompt adds to the model's expectation, more strongly than it does.

Follows Sanchez et al., "Stay on topic with Classifier-Free Guidance" (arXiv 2306.17806): every token is drawn from
log p(w) + scale * (log p(w | prompt) - log p(w)), both computed in one step from contexts that grow by the same tokens.
The unconditional side is the chat with `negative` as its only message, which is the paper's negative prompt; left empty
it is a chat about nothing, where the paper keeps the last token of the prompt.
"""

EXTENSION = {
    "name": "classifier_free_guidance",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "scale": {"type": "number", "minimum": 0, "maximum": 10, "default": 1.5},
            "negative": {"type": "string", "default": ""},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 200},
            "temperature": {"type": "number", "minimum": 0, "maximum": 2, "default": 0.8},
            "seed": {"type": "integer", "default": 0},
        },
        "additionalProperties": False,
    },
}

GUIDE = """
def sample(lanes, key, scale, temperature):
    mixed = lanes[1].logits + scale * (lanes[0].logits - lanes[1].logits)
    drawn = gumbel_argmax(mixed / max(temperature, 0.01), key)
    return where(temperature < 0.01, argmax(mixed), drawn)
"""


async def main(request, lm):
    args = request.args
    guided = await lm.context(request.messages)
    plain = await lm.context([{"role": "user", "content": args["negative"]}])
    fwd = lm.forward()
    await fwd.embed_next([guided, plain])
    await fwd.epilogue(await lm.program(GUIDE, scale=args["scale"], temperature=args["temperature"]))
    tokens = await lm.pipeline().run_ahead(fwd, args["max_tokens"], seed=args["seed"], emit=True)
    return await lm.decode(tokens)
