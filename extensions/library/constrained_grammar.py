"""An answer in a language of the caller's own: a Lark grammar or GBNF, checked before anything is computed.

Grammar-constrained decoding as in Geng et al. (arXiv 2305.13971): tokens that leave the language get no probability;
what remains is renormalised, which is not the model's own distribution over sentences of the language.
"""

EXTENSION = {
    "name": "constrained_grammar",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "grammar": {"type": "string", "minLength": 1},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 128},
            "temperature": {"type": "number", "minimum": 0, "maximum": 2, "default": 0.0},
        },
        "required": ["grammar"],
        "additionalProperties": False,
    },
}


async def main(request, lm):
    args = request.args
    language = await lm.constraint({"grammar": args["grammar"]})
    ctx = await lm.context(request.messages)
    answer = await ctx.generate(
        max_tokens=args["max_tokens"], temperature=args["temperature"], constrain=language, emit=True
    )
    return answer.text
