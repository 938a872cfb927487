"""Devices that people drive with: browser, keyboard, gamepad, and a scripted person for experiments."""
