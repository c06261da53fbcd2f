package study

import "fmt"

// words are the texts of the pages in one language. Those with verbs are formats.
type words struct {
	Language, Other, OtherLanguage string

	// Of the consent page.
	Consent, Purpose, YouDo, YouDoText                     string
	Recorded, RecordedTask, RecordedRating, RecordedRest   string
	NotRecorded, NotRecordedText, Cookie                   string
	Withdrawing, WithdrawAny, WithdrawLater, Voluntary     string
	Agree, Begin, Contact                                  string
	TaskOf, FindPlace, BuyItem, Meets, HowMap, HowShop     string
	Start, StartNote, Working, Continue, Done, DoneHint    string
	Chosen, GiveUp, Rate, RateQuestion, RateRequired, Send string
	// Scale is from 1 to 5.
	Scale                                      [5]string
	End, EndText, Code                         string
	Withdraw, WithdrawSummary, WithdrawNote    string
	Withdrawn, WithdrawnText                   string
	Moving                                     string
	Refused, RefusedForm, Stale, Full, TooMany string
	NotStored, NotFound, WrongMethod, Return   string
}

var english = &words{
	Language: "English", Other: "日本語", OtherLanguage: languageJA,
	Consent: "Consent to take part", Purpose: "This study examines how the network changes what users of web pages experience.",
	YouDo: "What you do", YouDoText: "You use web pages for %d tasks. Each time you look for something that meets three conditions, and then say how satisfied you were.",
	Recorded: "What is recorded", RecordedTask: "For each task: what you choose and how many conditions it meets, how long it takes, and how often the page is loaded.",
	RecordedRating: "Your rating of each task.", RecordedRest: "The language of the pages, and a random code that stands for you.",
	NotRecorded: "What is not recorded", NotRecordedText: "No name, no network address, no browser or device, no date or time of day. Nothing at all is recorded before you agree.",
	Cookie:      "One cookie keeps your place in the study. It lasts for 7 days, and only this study can read it.",
	Withdrawing: "How to withdraw", WithdrawAny: "At any time, and without a reason: each page has a button that deletes all of your answers at once and ends your participation.",
	WithdrawLater: "Later: tell your code, which is below that button and on the last page, to the contact.", Voluntary: "Taking part is voluntary. You can stop at any time.",
	Agree: "I have read this, and I take part voluntarily.", Begin: "Begin", Contact: "Contact",
	TaskOf: "Task %d of %d", FindPlace: "Find a place on the map", BuyItem: "Put an item into the shopping cart", Meets: "It meets these conditions:",
	HowMap:  "Move and zoom the map, open a place in the list beside it, and choose it.",
	HowShop: "Search, narrow the results, open an item, and add it to the cart. The item that you added last counts.",
	Start:   "Start the task", StartNote: "The time runs from here until you press “Done”. The conditions stay visible.",
	Working: "The task is running", Continue: "Continue", Done: "Done", DoneHint: "Choose first, then press “Done”.",
	Chosen: "You have chosen. Press “Done” to end the task.", GiveUp: "I cannot find it",
	Rate: "Your rating", RateQuestion: "How satisfied were you with using the page in this task?", RateRequired: "Choose one of the five.", Send: "Send",
	Scale: [5]string{"Very dissatisfied", "Dissatisfied", "Neither satisfied nor dissatisfied", "Satisfied", "Very satisfied"},
	End:   "Thank you", EndText: "You have finished all tasks. You can close this page.", Code: "Your code",
	Withdraw: "Withdraw and delete my answers", WithdrawSummary: "Withdraw", WithdrawNote: "This deletes everything that was recorded of you. It cannot be undone.",
	Withdrawn: "You have withdrawn", WithdrawnText: "All of your answers are deleted. You can close this page.",
	Moving:  "The next page is loading.",
	Refused: "This was not accepted", RefusedForm: "The request did not come from a page of your session in this study.", Stale: "This step is already done, or not yet due.",
	Full: "The study has enough participants. Thank you for your interest.", TooMany: "Too many participants begin at this moment. Try again in a minute.",
	NotStored: "Your answer could not be stored. Please tell the contact of the study.", NotFound: "There is no such page.", WrongMethod: "The page does not accept this.", Return: "Back to the study",
}

var japanese = &words{
	Language: "日本語", Other: "English", OtherLanguage: languageEN,
	Consent: "参加への同意", Purpose: "この研究では、ネットワークの違いがウェブページの使い心地にどう影響するかを調べます。",
	YouDo: "していただくこと", YouDoText: "ウェブページを使って %d 個の課題に取り組んでいただきます。毎回、三つの条件を満たすものを探し、その後で満足度を答えていただきます。",
	Recorded: "記録すること", RecordedTask: "課題ごとに、選んだもの、満たした条件の数、かかった時間、ページを読み込んだ回数。",
	RecordedRating: "課題ごとの評価。", RecordedRest: "ページの言語と、無作為に割り当てた参加者コード。",
	NotRecorded: "記録しないこと", NotRecordedText: "氏名、ネットワークアドレス、ブラウザや端末、日付や時刻は記録しません。同意の前には何も記録しません。",
	Cookie:      "研究のどこまで進んだかを保つために、クッキーを一つ使います。有効期間は 7 日で、この研究だけが読み取れます。",
	Withdrawing: "参加の取りやめ", WithdrawAny: "いつでも、理由なしに取りやめることができます。各ページのボタンを押すと、回答がすべてすぐに削除され、参加が終わります。",
	WithdrawLater: "後から取りやめるときは、そのボタンの下と最後のページに表示されるコードを連絡先にお知らせください。", Voluntary: "参加は任意です。いつでもやめることができます。",
	Agree: "説明を読み、自分の意思で参加します。", Begin: "始める", Contact: "連絡先",
	TaskOf: "課題 %d／%d", FindPlace: "地図で場所を探してください", BuyItem: "ショップで商品を探し、カートに入れてください", Meets: "次の条件を満たすもの：",
	HowMap:  "地図を移動したり拡大・縮小したりして、一覧から場所を開き、「この場所を選ぶ」を押します。",
	HowShop: "検索し、結果を絞り込み、商品を開いて、「カートに入れる」を押します。最後に入れた商品が回答になります。",
	Start:   "課題を始める", StartNote: "ここから「完了」を押すまでの時間を測ります。条件は画面に表示されたままです。",
	Working: "課題の途中です", Continue: "続ける", Done: "完了", DoneHint: "先に選んでから「完了」を押してください。",
	Chosen: "選びました。「完了」を押すと課題が終わります。", GiveUp: "見つからない",
	Rate: "評価", RateQuestion: "この課題でのページの使い心地に、どのくらい満足しましたか。", RateRequired: "五つのうち一つを選んでください。", Send: "送信",
	Scale: [5]string{"とても不満", "不満", "どちらとも言えない", "満足", "とても満足"},
	End:   "ありがとうございました", EndText: "すべての課題が終わりました。このページを閉じてかまいません。", Code: "あなたのコード",
	Withdraw: "取りやめて回答を削除する", WithdrawSummary: "参加を取りやめる", WithdrawNote: "あなたについて記録したものをすべて削除します。元に戻すことはできません。",
	Withdrawn: "取りやめました", WithdrawnText: "回答はすべて削除されました。このページを閉じてかまいません。",
	Moving:  "次のページを読み込んでいます。",
	Refused: "受け付けられませんでした", RefusedForm: "この研究の、あなたのセッションのページから送られたものではありません。", Stale: "この段階はすでに終わっているか、まだ始まっていません。",
	Full: "参加者の数が上限に達しました。ご関心をお寄せいただき、ありがとうございます。", TooMany: "今、同時に始める参加者が多すぎます。1 分後にもう一度お試しください。",
	NotStored: "回答を保存できませんでした。研究の連絡先にお知らせください。", NotFound: "そのページはありません。", WrongMethod: "このページでは受け付けられません。", Return: "研究に戻る",
}

// in returns the texts of a language.
func in(language string) *words {
	if language == languageJA {
		return japanese
	}
	return english
}

// Lang returns the language's tag.
func (w *words) Lang() string {
	if w == japanese {
		return languageJA
	}
	return languageEN
}

// Fill formats a text.
func (w *words) Fill(format string, values ...any) string { return fmt.Sprintf(format, values...) }

// title returns the study's title in the language.
func (w *words) title(t Text) string {
	if w == japanese {
		return t.JA
	}
	return t.EN
}
