"""Prompt lookup: guess that a phrase goes on as it did before, and check the whole guess in one pass.

Saxena's prompt lookup decoding (https://github.com/apoorvumang/prompt-lookup-decoding), verified as Leviathan et al.
do at temperature 0 (arXiv 2211.17192): the last `match` tokens are looked up in the history, what followed them there
is the guess, and of the guess the greedy choice keeps as much as it agrees with, and one token of its own. The answer
is that of greedy decoding. A guess is checked by `ctx.score`, in the script; where nothing is found the engine goes
on alone.
"""

EXTENSION = {
    "name": "prompt_lookup_speculation",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "match": {"type": "integer", "minimum": 1, "maximum": 8, "default": 3},
            "guess": {"type": "integer", "minimum": 1, "maximum": 64, "default": 10},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 256},
        },
        "additionalProperties": False,
    },
}


def looked_up(tokens, match, count):
    """What followed the newest earlier place where the last tokens stood, longest match first."""
    for size in range(min(match, len(tokens) - 1), 0, -1):
        tail = tokens[-size:]
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == tail:
                return tokens[start + size : start + size + count]
    return []


async def main(request, lm):
    args = request.args
    ctx = await lm.context(request.messages or request.prompt)
    await ctx.append("")  # opens the answer: tokens that follow are a part of it
    asked = request.prompt or "\n".join(one["content"] for one in request.messages)
    tokens = await lm.tokenize(asked) if isinstance(asked, str) else list(asked)
    num_before = len(tokens)
    passes, accepted = 0, 0
    ended = False
    while not ended and (left := args["max_tokens"] - len(tokens) + num_before) > 0:
        guess = looked_up(tokens, args["match"], min(args["guess"], left - 1))
        if guess:
            # Behind the guess stands any token: what counts there is what the model would have taken.
            seen = (await ctx.score([guess + guess[-1:]], top=1))[0]
            right = 0
            while right < len(guess) and guess[right] == seen[right].top[0].token:
                right += 1
            new = [one.top[0].token for one in seen[: right + 1]]
            accepted += right
            for at, token in enumerate(new):
                if token in lm.model.eos_token_ids:
                    new, ended = new[:at], True
                    break
            await ctx.append(new)
        else:
            piece = await ctx.generate(max_tokens=1, temperature=0.0)
            new = [] if piece.tokens[-1] in lm.model.eos_token_ids else piece.tokens
            ended = piece.finish_reason == "stop"
        passes += 1
        await lm.emit(await lm.decode(new))
        tokens += new
    return {"tokens": len(tokens) - num_before, "passes": passes, "accepted": accepted}
