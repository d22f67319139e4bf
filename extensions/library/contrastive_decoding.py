"""Contrastive decoding: prefer what the model expects and a weaker view of the same question would not.

Follows Li et al., "Contrastive Decoding" (arXiv 2210.15097): among the tokens that the expert finds at least `alpha`
times as likely as its likeliest one, log p(expert) - log p(amateur at its own temperature) decides. The amateur is the
same model that sees the last `window` words of the last message only, the restricted context that the paper names
beside smaller models. Tokens are drawn, or taken greedily at temperature 0, where the paper searches with beams.
"""

EXTENSION = {
    "name": "contrastive_decoding",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "alpha": {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "default": 0.1},
            "amateur_temperature": {"type": "number", "minimum": 0.1, "maximum": 2, "default": 0.5},
            "window": {"type": "integer", "minimum": 1, "default": 2},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 200},
            "temperature": {"type": "number", "minimum": 0, "maximum": 2, "default": 0.0},
            "seed": {"type": "integer", "default": 0},
        },
        "additionalProperties": False,
    },
}

CONTRAST = """
def sample(lanes, key, alpha, tau, temperature):
    expert = log_softmax(lanes[0].logits)
    plausible = expert >= log(alpha) + max(expert)
    score = where(plausible, expert - log_softmax(lanes[1].logits / tau), -1e30)
    probe.kept = sum(int(plausible))
    drawn = gumbel_argmax(score / max(temperature, 0.01), key)
    return where(temperature < 0.01, argmax(score), drawn)
"""


async def main(request, lm):
    args = request.args
    last = request.messages[-1]
    words = last["content"].split()
    expert = await lm.context(request.messages)
    amateur = await lm.context([{"role": last["role"], "content": " ".join(words[-args["window"] :])}])
    contrast = await lm.program(
        CONTRAST, alpha=args["alpha"], tau=args["amateur_temperature"], temperature=args["temperature"]
    )
    fwd = lm.forward()
    await fwd.embed_next([expert, amateur])
    await fwd.epilogue(contrast)
    pipe = lm.pipeline()
    tokens = await pipe.run_ahead(fwd, args["max_tokens"], seed=args["seed"], emit=True)
    await lm.emit_event("kept", pipe.probes["kept"])
    return await lm.decode(tokens)
