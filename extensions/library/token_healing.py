"""Token healing: let the model choose anew how the prompt's last token ends, so that a cut inside a word does no harm.

The single-token case of Athiwaratkun et al., "Token Alignment via Character Matching for Subword Completion" (arXiv
2403.08688): the last token of the prompt is taken back, and tokens are held to those that spell its text, or begin
with it, until it is spelled again; after that nothing is held. The answer is what comes behind the prompt.
"""

EXTENSION = {
    "name": "token_healing",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "begin": {"type": "string", "minLength": 1},
            "temperature": {"type": "number", "minimum": 0, "maximum": 2, "default": 0.0},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 64},
            "seed": {"type": "integer", "default": 0},
        },
        "additionalProperties": False,
    },
}


async def main(request, lm):
    args = request.args
    begin = args.get("begin", request.prompt)
    if not isinstance(begin, str) or not begin:
        raise ValueError("there must be a text to go on with: the prompt, or `begin` as the beginning of the answer")
    tokens = await lm.tokenize(begin)
    left = await lm.decode(tokens[-1:])
    if not begin.endswith(left) or begin == left:
        left = ""  # the token is a part of a character, or all there is
    kept = begin[: len(begin) - len(left)]
    if request.messages:
        ctx = await lm.context(request.messages)
        await ctx.append(kept)
    else:
        ctx = await lm.context(kept)
    text = ""
    while left:
        spelled = await lm.constraint({"regex": re.escape(left) + "[\\s\\S]*"})
        piece = await ctx.generate(max_tokens=1, temperature=args["temperature"], seed=args["seed"], constrain=spelled)
        text, left = piece.text[len(left) :], left[len(piece.text) :]
    answer = await ctx.generate(max_tokens=args["max_tokens"], temperature=args["temperature"], seed=args["seed"])
    return text + answer.text
