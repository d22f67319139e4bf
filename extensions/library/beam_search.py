"""Beam search: keep the likeliest few beginnings of an answer, and go on from each by each of its likeliest tokens.

Beam search as Sutskever et al. decode by (arXiv 1409.3215), with the length normalisation of Wu et al. (arXiv
1609.08144, lp without coverage): the score of an answer is the sum of its log-probabilities over ((5 + length) / 6)
** length_penalty. It ends when no beam can get above the worst answer kept. Beams are forks: what they share is
stored once.
"""

EXTENSION = {
    "name": "beam_search",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "beams": {"type": "integer", "minimum": 1, "maximum": 64, "default": 4},
            "length_penalty": {"type": "number", "minimum": 0, "maximum": 2, "default": 1.0},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 64},
        },
        "additionalProperties": False,
    },
}


class Beam:
    def __init__(self, ctx, tokens, total):
        self.ctx = ctx
        self.tokens = tokens
        self.total = total


def normalised(total, length, penalty):
    return total / ((5 + length) / 6) ** penalty


async def grown(beam, token, logprob):
    ctx = await beam.ctx.fork()
    await ctx.append([token])
    return Beam(ctx, beam.tokens + [token], beam.total + logprob)


async def main(request, lm):
    args = request.args
    width, penalty = args["beams"], args["length_penalty"]
    start = await lm.context(request.messages or request.prompt)
    await start.append("")  # opens the answer: tokens that follow are a part of it
    beams = [Beam(start, [], 0.0)]
    done = []
    for length in range(1, args["max_tokens"] + 1):
        looks = await asyncio.gather(*[beam.ctx.next(top=2 * width) for beam in beams])
        options = [(beam.total + one.logprob, beam, one) for beam, look in zip(beams, looks) for one in look.candidates]
        options.sort(key=lambda option: -option[0])
        chosen = []
        for total, beam, one in options[: 2 * width]:
            if one.token in lm.model.eos_token_ids:
                done.append((normalised(total, length, penalty), beam.tokens))
            elif len(chosen) < width:
                chosen.append((beam, one))
        done = sorted(done, key=lambda answer: -answer[0])[:width]
        grew = await asyncio.gather(*[grown(beam, one.token, one.logprob) for beam, one in chosen])
        for beam in beams:
            await beam.ctx.release()
        beams = grew
        best_left = normalised(beams[0].total, args["max_tokens"], penalty)
        if len(done) == width and done[-1][0] >= best_left:
            break
    done += [(normalised(beam.total, len(beam.tokens), penalty), beam.tokens) for beam in beams]
    done = sorted(done, key=lambda answer: -answer[0])[:width]
    texts = [await lm.decode(tokens) for _, tokens in done]
    await lm.emit(texts[0])
    return {"beams": [{"text": text, "score": score} for text, (score, _) in zip(texts, done)]}
