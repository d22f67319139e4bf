"""Quest: let new tokens attend to the pages alone that matter to the newest one, chosen anew as it changes; keep all.

Follows Tang et al., "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference" (arXiv 2406.10774): nothing
is evicted, since what one token passes over the next may need, and `budget` tokens, in whole pages, are attended to.
There every head of every layer but the first two chooses for itself, for each token, by an upper bound from the least
and greatest keys of a page. Here the attention of the newest token itself chooses, by its mean over all layers, once
for `stride` tokens: these are drawn on a fork without the other pages, then take their place in the whole history.
"""

EXTENSION = {
    "name": "quest",
    "version": "1.0.0",
    "capabilities": ["attention"],
    "params": {
        "type": "object",
        "properties": {
            "budget": {"type": "integer", "minimum": 32, "default": 256},
            "stride": {"type": "integer", "minimum": 1, "maximum": 256, "default": 16},
            "temperature": {"type": "number", "minimum": 0, "maximum": 2, "default": 0.0},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 512},
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
    passed, returned, left, bytes = set(), 0, args["max_tokens"], []
    while left > 0:
        whole, view = (ctx.length - 1) // page, await ctx.fork()
        if whole + 1 > args["budget"] // page:
            scores = await attended(lm, ctx)
            pages = sorted(range(whole), key=lambda at: sum(scores[at * page : at * page + page]), reverse=True)
            chosen = set(pages[: args["budget"] // page - 1])
            returned += len(chosen & passed)
            passed = set(range(whole)) - chosen
            start = 0
            for at in [*sorted(chosen), whole]:
                if start < at:
                    await view.drop(start * page, at * page)
                start = at + 1
        piece = await view.generate(
            max_tokens=min(args["stride"], left), temperature=args["temperature"], seed=args["seed"], emit=True
        )
        bytes.append((await view.info()).bytes)
        await view.release()
        await ctx.append(piece.tokens)
        await ctx.prefill()
        left -= len(piece.tokens)
        if piece.finish_reason == "stop":
            break
    return {"length": ctx.length, "returned": returned, "bytes": bytes, "all": (await ctx.info()).bytes}
