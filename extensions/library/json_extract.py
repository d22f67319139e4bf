"""Extraction: read a text and fill in a JSON object whose schema the caller gives.

Constrained decoding as in Willard and Louf, "Efficient Guided Generation for Large Language Models" (arXiv 2307.09702),
by the server's own engine; every field is valid by construction.
"""

EXTENSION = {
    "name": "json_extract",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "schema": {"type": "object"},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 300},
        },
        "required": ["schema"],
        "additionalProperties": False,
    },
}


async def main(request, lm):
    schema = request.args["schema"]
    ctx = await lm.context(request.messages)
    await ctx.append(
        [{"role": "user", "content": "Fill in this form from the text above, as JSON: " + json.dumps(schema)}]
    )
    found = await ctx.generate(
        max_tokens=request.args["max_tokens"], temperature=0.0, constrain={"json_schema": schema}
    )
    if found.finish_reason == "length":
        raise ValueError("the object was not finished within max_tokens")
    return {"object": json.loads(found.text)}
