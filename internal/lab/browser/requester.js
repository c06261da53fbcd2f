// tabaneRequest requests a URL and returns the status of the response, or why there is none.
globalThis.tabaneRequest = async (url) => {
	try {
		const response = await fetch(url, {cache: 'no-store'});
		globalThis.tabaneBody = response.body.getReader();
		return {code: response.status};
	} catch (error) {
		return {fault: String(error)};
	}
};

// tabaneRead reads the body of the last response and reports the bytes of each piece.
globalThis.tabaneRead = async () => {
	for (;;) {
		const {done, value} = await globalThis.tabaneBody.read();
		if (done) {
			return true;
		}
		globalThis.tabaneArrived(String(value.length));
	}
};

true;
