"""The connection of a process to a Ray cluster; Ray is imported only when somebody asks for it."""
