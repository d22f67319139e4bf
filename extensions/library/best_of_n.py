"""Best of n: sample n answers from one prompt that is computed once, and keep the likeliest.

Follows best-of-n sampling (Stiennon et al., "Learning to summarize from human feedback", arXiv 2009.01325),
with the model's own mean log-probability in place of a reward model.
"""

EXTENSION = {
    "name": "best_of_n",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 1, "maximum": 64, "default": 4},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 256},
            "temperature": {"type": "number", "minimum": 0, "maximum": 2, "default": 0.9},
            "seed": {"type": "integer", "default": 0},
        },
        "additionalProperties": False,
    },
}


async def main(request, lm):
    args = request.args
    prompt = await lm.context(request.messages)
    branches = await prompt.fork(args["n"])
    answers = await asyncio.gather(
        *[
            branch.generate(max_tokens=args["max_tokens"], temperature=args["temperature"], seed=args["seed"] + at)
            for at, branch in enumerate(branches)
        ]
    )
    best = max(answers, key=lambda answer: answer.mean_logprob)
    await lm.emit_event("candidates", [[answer.text, answer.mean_logprob] for answer in answers])
    return best.text
