"""Attention sinks: go on for ever in bounded memory, with the first few tokens kept beside the newest ones.

Follows Xiao et al., "Efficient Streaming Language Models with Attention Sinks" (arXiv 2309.17453): everything between
the sinks and the window is dropped, and its memory is free again. Positions stay what they were, where the paper
counts them inside the cache, so the model's own greatest length is still the end. Dropping happens every `stride`
tokens, and whole pages are freed.
"""

EXTENSION = {
    "name": "attention_sink",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "sinks": {"type": "integer", "minimum": 1, "maximum": 1024, "default": 4},
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
    dropped, left, bytes = args["sinks"], args["max_tokens"], []
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
