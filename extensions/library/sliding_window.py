"""Sliding window: each token attends to the newest ones alone; what is older is dropped and its memory is free again.

The local attention of Beltagy et al., "Longformer" (arXiv 2004.05150), laid over a model that was not trained for it,
as a baseline: without the first tokens most models fall apart, which `attention_sink` mends. The window moves every
`stride` tokens.
"""

EXTENSION = {
    "name": "sliding_window",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "window": {"type": "integer", "minimum": 1, "default": 256},
            "stride": {"type": "integer", "minimum": 1, "maximum": 1024, "default": 32},
            "temperature": {"type": "number", "minimum": 0, "maximum": 2, "default": 0.0},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 1024},
            "seed": {"type": "integer", "default": 0},
        },
        "additionalProperties": False,
    },
}


async def main(request, lm):
    args = request.args
    ctx = await lm.context(request.messages or request.prompt)
    await ctx.prefill()
    dropped, left, bytes = 0, args["max_tokens"], []
    while left > 0:
        stop = ctx.length - args["window"]
        if stop > dropped:
            await ctx.drop(dropped, stop)
            dropped = stop
        piece = await ctx.generate(
            max_tokens=min(args["stride"], left), temperature=args["temperature"], seed=args["seed"], emit=True
        )
        bytes.append((await ctx.info()).bytes)
        left -= len(piece.tokens)
        if piece.finish_reason == "stop":
            break
    return {"length": ctx.length, "bytes": bytes}
