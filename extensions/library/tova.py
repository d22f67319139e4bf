"""TOVA: of all tokens drop those that the newest one attends to least, however old they are.

Follows Oren et al., "Transformers are Multi-State RNNs" (arXiv 2401.06104): when there are more than `budget` tokens,
the ones with the lowest attention of the last token, as the mean over heads, go. There each layer chooses for itself
and drops one token a step; here one choice counts for all layers, by their mean, and every `stride` tokens whole pages
are dropped, so that their memory is free. The page that is being written stays.
"""

EXTENSION = {
    "name": "tova",
    "version": "1.0.0",
    "capabilities": ["attention"],
    "params": {
        "type": "object",
        "properties": {
            "budget": {"type": "integer", "minimum": 32, "default": 256},
            "stride": {"type": "integer", "minimum": 1, "maximum": 256, "default": 16},
            "temperature": {"type": "number", "minimum": 0, "maximum": 2, "default": 0.0},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 1024},
            "seed": {"type": "integer", "default": 0},
        },
        "additionalProperties": False,
    },
}


async def attended(lm, ctx):
    """What the last token attends to, by slot."""
    last = ctx.length - 1
    before = await ctx.fork()
    await before.truncate(last)
    look = lm.forward()
    await look.embed(await ctx.tokens(last))
    await look.state([before])
    await look.on_attention(top=0)
    found = await look.run()
    await before.release()
    return found.attention[0].scores


async def main(request, lm):
    args, page = request.args, lm.model.page_tokens
    ctx = await lm.context(request.messages or request.prompt)
    await ctx.append("")
    await ctx.prefill()
    kept, num_pages, left, bytes = [], 0, args["max_tokens"], []
    while left > 0:
        whole = (ctx.length - 1) // page
        kept += list(range(num_pages, whole))
        num_pages = whole
        num_over = len(kept) + 1 - args["budget"] // page
        if num_over > 0:
            scores = await attended(lm, ctx)
            kept.sort(key=lambda at: sum(scores[at * page : at * page + page]))
            for at in kept[:num_over]:
                await ctx.drop(at * page, at * page + page)
            kept = kept[num_over:]
        piece = await ctx.generate(
            max_tokens=min(args["stride"], left), temperature=args["temperature"], seed=args["seed"], emit=True
        )
        bytes.append((await ctx.info()).bytes)
        left -= len(piece.tokens)
        if piece.finish_reason == "stop":
            break
    return {"length": ctx.length, "kept": (len(kept) + 1) * page, "bytes": bytes}
