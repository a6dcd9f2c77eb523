"""The exchange of rows and tokens between the devices that hold them and the devices that have their experts.

ragged_exchange.py  sends rows whose number is data, and its transpose
rows.py             rows sorted by expert: to the owners of their experts, and results back
choice.py           what each exchange sends, and which is the cheapest by measured rates
"""
