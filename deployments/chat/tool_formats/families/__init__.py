"""The families, those of one maker in one file: declarations that `deployments.chat.tool_formats` lists."""
