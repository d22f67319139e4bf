"""H2O, heavy-hitter oracle: keep the newest tokens and those that were attended to most so far, and drop the others.

Follows Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference" (arXiv 2306.14048): scores are the
attention that each token has gathered from all that came after it, prompt and answer, and of those outside of the
newest `recent` the lowest go until `budget` tokens are left. There every head of every layer chooses for itself, after
each token; here one choice counts for all, by the mean over them, and every `stride` tokens whole pages are dropped,
so that their memory is free. The first page always stays, where the paper's scores would keep it anyway.
"""

EXTENSION = {
    "name": "h2o",
    "version": "1.0.0",
    "capabilities": ["attention"],
    "params": {
        "type": "object",
        "properties": {
            "budget": {"type": "integer", "minimum": 32, "default": 256},
            "recent": {"type": "integer", "minimum": 0, "default": 128},
            "stride": {"type": "integer", "minimum": 1, "maximum": 256, "default": 32},
            "temperature": {"type": "number", "minimum": 0, "maximum": 2, "default": 0.0},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 1024},
            "seed": {"type": "integer", "default": 0},
        },
        "additionalProperties": False,
    },
}

CHUNK = 256


async def gathered(lm, ctx, since):
    """The attention of all tokens from one on, summed up, by slot."""
    pipe, handles, length = lm.pipeline(), [], ctx.length
    for start in range(max(since, 1), length, CHUNK):
        stop = min(start + CHUNK, length)
        before = await ctx.fork()
        await before.truncate(start)
        look = lm.forward()
        await look.embed(await ctx.tokens(start, stop))
        await look.state([before])
        await look.readout(list(range(stop - start)), top=1)
        await look.on_attention(total=True, top=0)
        handles.append((before, await pipe.submit(look)))
    total = [0.0] * length
    for before, handle in handles:
        for slot, score in enumerate((await handle.result()).attention[0].scores):
            total[slot] += score
        await before.release()
    return total


async def main(request, lm):
    args, page = request.args, lm.model.page_tokens
    ctx = await lm.context(request.messages or request.prompt)
    await ctx.append("")
    await ctx.prefill()
    scores, kept, left, bytes = [], [0], args["max_tokens"], []
    while left > 0:
        new = await gathered(lm, ctx, len(scores))
        kept += list(range((len(scores) + page - 1) // page or 1, (ctx.length + page - 1) // page))
        scores = [(scores[slot] if slot < len(scores) else 0.0) + one for slot, one in enumerate(new)]
        safe = (ctx.length - max(args["recent"], 1)) // page
        old = sorted([at for at in kept if 0 < at < safe], key=lambda at: sum(scores[at * page : at * page + page]))
        for at in old[: max(0, len(kept) - args["budget"] // page)]:
            await ctx.drop(at * page, at * page + page)
            kept.remove(at)
        piece = await ctx.generate(
            max_tokens=min(args["stride"], left), temperature=args["temperature"], seed=args["seed"], emit=True
        )
        bytes.append((await ctx.info()).bytes)
        left -= len(piece.tokens)
        if piece.finish_reason == "stop":
            break
    return {"length": ctx.length, "kept": len(kept) * page, "bytes": bytes}
