"""Self-correction by rewinding: generate sentence by sentence, and take back those that a check refuses.

After Qu et al., "Recursive Introspection" (arXiv 2407.18219) in its aim, not in its training: the check is a regular
expression that must not be found (`forbid`), a sentence that breaks it is rewound and drawn again with another seed,
and the KV of everything before it stays.
"""

EXTENSION = {
    "name": "self_correct",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "forbid": {"type": "string"},
            "sentences": {"type": "integer", "minimum": 1, "maximum": 32, "default": 4},
            "attempts": {"type": "integer", "minimum": 1, "maximum": 16, "default": 4},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 60},
        },
        "required": ["forbid"],
        "additionalProperties": False,
    },
}


async def main(request, lm):
    args = request.args
    ctx = await lm.context(request.messages)
    done: list[str] = []
    num_rewinds = 0
    for number in range(args["sentences"]):
        start = await ctx.mark()
        piece = None
        for attempt in range(args["attempts"]):
            if piece is not None:
                await ctx.rewind(start)
                num_rewinds += 1
            piece = await ctx.generate(
                max_tokens=args["max_tokens"], temperature=0.8, seed=100 * number + attempt, stop=[". ", "! ", "? "]
            )
            if re.search(args["forbid"], piece.text) is None:
                break
        if piece is None or re.search(args["forbid"], piece.text) is not None:
            break
        is_whole = piece.finish_reason == "stop" and piece.tokens[-1] in lm.model.eos_token_ids
        await lm.emit(piece.text if is_whole else piece.text + ". ")
        done.append(piece.text)
        if is_whole or not piece.text:
            break
    return {"sentences": done, "rewinds": num_rewinds}
