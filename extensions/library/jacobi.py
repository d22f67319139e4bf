"""Jacobi decoding: guess several tokens, compute all of them at once, and repeat until the guess is what comes out.

Follows Santilli et al., "Accelerating Transformer Inference for Translation via Parallel Decoding" (arXiv
2305.10427), the hybrid form: blocks of `block` tokens are solved by fixed-point iteration, each round takes the
greedy choice at every place of the guess. Tokens that are right from the left on stay. The answer is that of greedy
decoding; `rounds` per token below 1 means that fewer passes were needed than tokens.
"""

EXTENSION = {
    "name": "jacobi",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "block": {"type": "integer", "minimum": 1, "maximum": 64, "default": 8},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 128},
        },
        "additionalProperties": False,
    },
}


async def main(request, lm):
    args = request.args
    ctx = await lm.context(request.messages or request.prompt)
    await ctx.append("")  # opens the answer: tokens that follow are a part of it
    out, rounds = [], 0
    guess = []
    ended = False
    while len(out) < args["max_tokens"] and not ended:
        filler = out[-1] if out else (await lm.tokenize(" the"))[-1]
        guess = (guess + [filler] * args["block"])[: min(args["block"], args["max_tokens"] - len(out))]
        seen = (await ctx.score([guess], top=1))[0]
        rounds += 1
        better = [one.top[0].token for one in seen]
        # The choice at a place is final once all before it are: those that were guessed right, and one more.
        right = 0
        while right < len(guess) - 1 and guess[right] == better[right]:
            right += 1
        fixed = better[: right + 1]
        for at, token in enumerate(fixed):
            if token in lm.model.eos_token_ids:
                fixed, ended = fixed[:at], True
                break
        await ctx.append(fixed)
        await lm.emit(await lm.decode(fixed))
        out += fixed
        guess = better[right + 1 :]
    return {"tokens": len(out), "rounds": rounds}
