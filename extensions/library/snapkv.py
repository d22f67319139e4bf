"""SnapKV: before the answer begins, drop what the end of the prompt does not attend to.

Follows Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation" (arXiv 2404.14469): the last `window`
tokens of the prompt vote by the attention that they pay to what comes before, votes are smoothed over `kernel`
neighbours so that what stands beside a chosen token is kept with it, and the `budget` with most stay, beside the
window. There every head chooses its tokens; here one choice counts for all heads and layers, by their mean, and whole
pages are dropped, so that their memory is free. The answer itself is kept whole, as in the paper.
"""

EXTENSION = {
    "name": "snapkv",
    "version": "1.0.0",
    "capabilities": ["attention"],
    "params": {
        "type": "object",
        "properties": {
            "budget": {"type": "integer", "minimum": 16, "default": 256},
            "window": {"type": "integer", "minimum": 1, "maximum": 256, "default": 32},
            "kernel": {"type": "integer", "minimum": 1, "maximum": 63, "default": 7},
            "temperature": {"type": "number", "minimum": 0, "maximum": 2, "default": 0.0},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 512},
            "seed": {"type": "integer", "default": 0},
        },
        "additionalProperties": False,
    },
}


async def votes(lm, ctx, start):
    """What the tokens from one on attend to, summed up, by slot."""
    before = await ctx.fork()
    await before.truncate(start)
    look = lm.forward()
    await look.embed(await ctx.tokens(start))
    await look.state([before])
    await look.readout(list(range(ctx.length - start)), top=1)
    await look.on_attention(total=True, top=0)
    found = await look.run()
    await before.release()
    return found.attention[0].scores


async def main(request, lm):
    args, page = request.args, lm.model.page_tokens
    ctx = await lm.context(request.messages or request.prompt)
    await ctx.append("")
    await ctx.prefill()
    before = (await ctx.info()).bytes
    start = ctx.length - min(args["window"], ctx.length - 1)
    pages, dropped = list(range(start // page)), []
    if len(pages) * page > args["budget"]:
        scores, side = (await votes(lm, ctx, start))[:start], args["kernel"] // 2
        smooth = [max(scores[max(0, at - side) : at + side + 1]) for at in range(start)]
        pages.sort(key=lambda at: sum(smooth[at * page : at * page + page]), reverse=True)
        dropped = pages[args["budget"] // page :]
        for at in dropped:
            await ctx.drop(at * page, at * page + page)
        await ctx.prefill()
    after = (await ctx.info()).bytes
    length = ctx.length
    await ctx.generate(max_tokens=args["max_tokens"], temperature=args["temperature"], seed=args["seed"], emit=True)
    return {"length": length, "kept": length - len(dropped) * page, "bytes": [before, after]}
